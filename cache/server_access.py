"""Who may read what from a feature server: tokens, and where it may listen without them.

A line for each token, in a file or in the environment variable ROIVAULT_TOKENS:

    NAME TOKEN [STORE,STORE...]

NAME is what the access log calls its bearer; TOKEN is the secret, or `sha256:` and its digest in hexadecimal. Without
stores it may read all that are served. A line that begins with # is a comment.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .errors import InputNotFound, UsageError

VARIABLE = "ROIVAULT_TOKENS"
_SHORTEST = 16
_MAKE_ONE = "make one with `head -c 32 /dev/urandom | base64`"


@dataclass(frozen=True)
class Access:
    """What a token is for.

    Attributes:
        name: of its bearer; None where no tokens are asked for.
        stores: that it may read; None: all.
    """

    name: str | None = None
    stores: frozenset[str] | None = None

    def may_read(self, store: str) -> bool:
        return self.stores is None or store in self.stores


EVERYBODY = Access()


class Tokens:
    """The tokens that a server knows, as digests. Raises: UsageError: a line that is none; the token is not shown."""

    def __init__(self, text: str, where: str):
        self._known: list[tuple[bytes, Access]] = []
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            if len(fields) not in (2, 3):
                raise UsageError(f"{where}, line {number}: a line is NAME TOKEN [STORE,STORE...], nothing else")
            name, token, *stores = fields
            access = Access(name, frozenset(filter(None, stores[0].split(","))) if stores else None)
            if access.stores is not None and not access.stores:
                raise UsageError(f"{where}, line {number}: {stores[0]!r} names no store")
            self._known.append((self._digest_in(token, f"{where}, line {number}"), access))
        names = [access.name for _, access in self._known]
        if not names:
            raise UsageError(f"{where} holds no token: a line is NAME TOKEN [STORE,STORE...]; {_MAKE_ONE}")
        if len(set(names)) < len(names) or len({digest for digest, _ in self._known}) < len(names):
            raise UsageError(f"{where}: a name or a token is there twice")

    @staticmethod
    def _digest_in(token: str, where: str) -> bytes:
        if token.startswith("sha256:"):
            if not re.fullmatch("[0-9a-fA-F]{64}", token[7:]):
                raise UsageError(f"{where}: sha256: is to be followed by 64 hexadecimal digits")
            return bytes.fromhex(token[7:])
        if not (token.isascii() and token.isprintable()):
            raise UsageError(f"{where}: the token holds what is no printable ASCII; {_MAKE_ONE}")
        if len(token) < _SHORTEST:
            raise UsageError(f"{where}: the token has fewer than {_SHORTEST} characters; {_MAKE_ONE}")
        return hashlib.sha256(token.encode(errors="surrogateescape")).digest()

    def access(self, token: str) -> Access | None:
        """What a token is for; None: it is not known. Takes as long whichever it is."""
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        found = None
        for known, access in self._known:
            if hmac.compare_digest(known, digest):
                found = access
        return found

    def refuse_unknown(self, stores: Collection[str]) -> None:
        """See that the tokens are for stores that are served. Raises: UsageError."""
        for _, access in self._known:
            if unknown := sorted((access.stores or set()) - set(stores)):
                raise UsageError(
                    f"the token of {access.name} is for {', '.join(unknown)}, served are {', '.join(sorted(stores))}"
                )


def read_tokens(path: Path | None) -> Tokens | None:
    """The tokens of a file, else of the environment; None when there are none.

    Raises:
        InputNotFound
        UsageError: the file is no list of tokens, or everybody on this machine may read it.
    """
    if path is None:
        text = os.environ.get(VARIABLE)
        return Tokens(text, VARIABLE) if text is not None else None
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & stat.S_IRWXO:
                raise UsageError(f"{path} can be read by everybody on this machine (mode {mode:o}): chmod 600 {path}")
            return Tokens(file.read(), str(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise InputNotFound(f"--token-file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--token-file {path} is not text in UTF-8") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tls: bool, tokens: Tokens | None, insecure: bool) -> None:
    """Where a server may listen. Raises: UsageError."""
    if is_loopback(host):
        return
    if tokens is not None and not tls:
        raise UsageError(
            f"tokens would travel in the open to {host}: give --tls-cert and --tls-key, or listen on 127.0.0.1"
        )
    needed = {"--tls-cert and --tls-key": tls, "--token-file": tokens is not None}
    lacking = [options for options, there in needed.items() if not there]
    if lacking and not insecure:
        raise UsageError(
            f"other machines reach {host}: give {' and '.join(lacking)}, or --insecure if whoever reaches it may read "
            "all that is served"
        )
