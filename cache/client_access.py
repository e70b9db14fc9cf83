"""Where a feature server is, and how one proves to it who asks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .endpoints import address
from .errors import InputNotFound, UsageError
from .server_access import is_loopback
from .wire import AUTHORIZATION, BEARER, PORT

PLAIN, TLS = "grpc", "grpc+tls"
_TOKEN, _CA = "ROIVAULT_TOKEN", "ROIVAULT_TLS_CA"
_CERT, _KEY = "ROIVAULT_TLS_CERT", "ROIVAULT_TLS_KEY"


def is_served(target: object) -> bool:
    """Whether a target is at a feature server."""
    return isinstance(target, str) and target.lower().startswith((f"{PLAIN}://", f"{TLS}://"))


def each_server(target: str) -> list[str]:
    """The URLs in a target such as grpc://a:8815,b:8815/NAME: what a later one leaves out is as in the first, and the
    name, where it has none, as in the last.
    """
    parts = target.split(",")
    scheme = parts[0].partition("://")[0]
    urls = [part if "://" in part else f"{scheme}://{part}" for part in map(str.strip, parts)]
    name = _path(urls[-1])
    return [url if not name or _path(url) else f"{url.rstrip('/')}/{name}" for url in urls]


def _path(url: str) -> str:
    return url.partition("://")[2].partition("/")[2].strip("/")


@dataclass(frozen=True)
class Address:
    """What a URL says. Raises: UsageError: it is none of a server.

    Attributes:
        host, port: of the server.
        tls: encrypt.
        store: name of one of its stores; None for the only one.
        shown: the URL, as messages have it.
    """

    host: str
    port: int
    tls: bool
    store: str | None
    shown: str

    @classmethod
    def of(cls, url: str) -> Address:
        wrong = UsageError(f"{url.rpartition('@')[2]} is not grpc://HOST:PORT or grpc+tls://HOST:PORT, with /NAME")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, PORT if parts.port is None else parts.port
        except ValueError:
            raise wrong from None
        more = parts.query or parts.fragment or parts.username is not None
        if not host or not port or parts.scheme not in (PLAIN, TLS) or more:
            raise wrong
        store = unquote(parts.path.strip("/")).removesuffix(".roi") or None
        place = f"{parts.scheme}://{address(host, port)}"
        return cls(host, port, parts.scheme == TLS, store, f"{place}/{store}" if store else place)

    @property
    def server(self) -> str:
        """As Flight takes it."""
        return self.shown.removesuffix(f"/{self.store}")


@dataclass(frozen=True)
class Access:
    """What `open_store` was told, and what else is in the environment.

    Args:
        token: default $ROIVAULT_TOKEN.
        tls_ca: file of the certificates that the server's is to be signed by; default $ROIVAULT_TLS_CA, else those that
            the system trusts. $ROIVAULT_TLS_CERT and $ROIVAULT_TLS_KEY are the files of a client's own certificate.
    """

    token: str | None = field(default=None, repr=False)
    tls_ca: str | os.PathLike | None = None

    @property
    def bearer(self) -> str | None:
        """Raises: UsageError: no server has a token like that."""
        token = os.environ.get(_TOKEN, "") if self.token is None else self.token
        if not isinstance(token, str):
            raise UsageError(f"a token is a text, not {type(token).__name__}")
        token = token.strip()
        if not (token.isascii() and token.isprintable()):
            raise UsageError("the token holds what is no printable ASCII")
        return token or None

    def check(self, server: Address) -> None:
        """See that no token would be readable on its way. Raises: UsageError."""
        if self.bearer and not server.tls and not is_loopback(server.host):
            whence = "token= gives one" if self.token is not None else f"{_TOKEN} gives one"
            raise UsageError(
                f"{server.shown}: a token is not sent over a network that can read it, and {whence}; give {TLS}://, or "
                "no token"
            )
        if not server.tls and self.tls_ca is not None:
            raise UsageError(f"{server.shown}: tls_ca is for {TLS}://")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of every call."""
        return [(AUTHORIZATION.encode(), (BEARER + self.bearer).encode())] if self.bearer else []

    def certificates(self) -> dict[str, bytes]:
        """What a client over TLS is made with. Raises: InputNotFound, UsageError."""
        files = {"tls_root_certs": self.tls_ca or os.environ.get(_CA)}
        files |= {"cert_chain": os.environ.get(_CERT), "private_key": os.environ.get(_KEY)}
        if bool(files["cert_chain"]) != bool(files["private_key"]):
            raise UsageError(f"set both {_CERT} and {_KEY}, or none of them")
        contents = {name: _read(file) for name, file in files.items() if file}
        _check_certificates(files["tls_root_certs"], files["cert_chain"], files["private_key"])
        return contents

    @property
    def secrets(self) -> Sequence[str]:
        return [self.bearer] if self.bearer else []


def _check_certificates(authorities: Any, chain: Any, key: Any) -> None:
    """gRPC would only log what is wrong with them, and try for ever. Raises: UsageError."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authorities:
            context.load_verify_locations(Path(authorities).expanduser())
    except ssl.SSLError as error:
        raise UsageError(f"{authorities} holds no certificates in PEM: {error}") from None
    try:
        if chain:
            context.load_cert_chain(Path(chain).expanduser(), Path(key).expanduser(), lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{chain} and {key} are no certificate and its key: {error}") from None


def _read(file: str | os.PathLike) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise InputNotFound(f"{file}, a certificate or its key, cannot be read: {error.strerror}") from None
