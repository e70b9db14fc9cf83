"""A store behind a feature server: its manifest, its indexes and bytes of its shards, over Arrow Flight.

`cache/wire.py` tells the protocol. It is read like a store behind any other URL: what it holds is looked up in a copy
of its indexes, so that only records are asked for, by their places.
"""

from __future__ import annotations

import errno
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from .client_access import Access, Address
from .client_connection import Connection
from .errors import DiskError, RoivaultError, StoreDamaged, StoreNotFound, StoreUnreachable, UsageError
from .manifest import FILE as MANIFEST
from .remote import RemoteFolder
from .wire import (
    DATA_LOSS,
    DRAINING,
    FILE_CHUNK,
    INVALID_ARGUMENT,
    MAX_KEYS,
    MAX_PLACE_BYTES,
    NOT_FOUND,
    TOO_LARGE,
    Note,
    encode_request,
)

_FIRST_SECONDS = 10.0  # of a call to a server that has not answered yet, or for which another one stands in
_SECONDS, _LEAST_SPEED = 30.0, 1 << 20  # of any other, and bytes per second that it may be slow
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_PLACE_BYTES + FILE_CHUNK),
    ("grpc.initial_reconnect_backoff_ms", 100),  # how soon a server that came back is found
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]
REQUEST_BYTES = 16 << 20  # of an answer, unless one record is longer; forks wait for it
_UNTRUSTED = "certificate verify failed", "CERTIFICATE_VERIFY_FAILED", "not in peer certificate"  # gRPC on certificates
_PLACE_BYTES = 52  # of a place in a request, at most

T = TypeVar("T")


class ServedFolder(RemoteFolder):
    """A store of a feature server, as if it were a folder with its files.

    Args:
        url: grpc://HOST:PORT or grpc+tls://HOST:PORT, with /NAME where the server has several stores.

    Raises:
        UsageError: it is no such URL, or a token would be readable on its way.
    """

    def __init__(self, url: str, access: Access | None = None):
        self._address, self._access = Address.of(url), access or Access()
        super().__init__(self._address.shown)
        self._access.check(self._address)
        self._secrets += self._access.secrets
        self._connection = Connection(self._make)

    def __reduce__(self) -> tuple:
        return ServedFolder, (self.url, self._access)

    # -- what is asked

    def read(self, name: str, start: int, end: int, stop: threading.Event | None = None) -> bytes:
        """Bytes of the manifest, of an index or of a sealed shard; otherwise as of any folder."""
        if (number := _shard_number(name)) is not None:
            size = max(end - start, 0)
            parts = [(number, start + at, min(FILE_CHUNK, size - at)) for at in range(0, size, FILE_CHUNK)]
            return b"".join(value for part in self.requests(parts) for value in self.records_at(part, stop))
        fields = {"offset": start, "length": end - start}
        if name == MANIFEST:
            return self._ask(name, "manifest", stop, **fields)
        return self._ask(name, "index", stop, file=name, **fields)

    def records_at(
        self, places: Sequence[tuple[int, int, int]], stop: threading.Event | None = None
    ) -> list[memoryview]:
        """Bytes of sealed shards, each of memory of its own; one request.

        Args:
            places: shard number, offset and length of each.

        Raises: StoreDamaged, StoreUnreachable, DiskError.
        """
        found: list[memoryview] = []

        def act(client: Any) -> None:  # a second try goes on where the first ended
            flight = _flight()
            left = places[len(found) :]
            ticket = flight.Ticket(encode_request(store=self._address.store, places=left))
            stream = client.do_get(ticket, self._call_options(sum(length for _, _, length in left)))
            for chunk in stream:
                if len(found) == len(places):
                    raise StoreDamaged(str(self), "it answers more than it was asked", "is it roivault's server?")
                found.append(self._value(chunk, places[len(found)]))
            if len(found) < len(places):
                raise flight.FlightUnavailableError(f"the stream ended after {len(found)} of {len(places)} records")

        if places:
            self._call(f"shard-{places[0][0]:05d}.lmdb", act, stop)
        return found

    def requests(self, places: Sequence[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
        """Places, as many together as one request may have."""
        most, part, size = self._most_places, [], 0
        for place in places:
            if len(part) == most or (part and size + place[2] > REQUEST_BYTES):
                yield part
                part, size = [], 0
            part.append(place)
            size += place[2]
        if part:
            yield part

    def check_writable(self) -> None:
        raise UsageError(f"{self} can only be read: a feature server takes nothing")

    # -- how

    @cached_property
    def _most_places(self) -> int:
        """Of one request."""
        limits = self._limits()
        keys, size = (limits.get(name) for name in ("max_keys", "max_request_bytes"))
        if not (type(keys) is int and type(size) is int):
            return MAX_KEYS
        return max(1, min(keys, MAX_KEYS, (size - 1000) // _PLACE_BYTES))

    def _limits(self) -> dict[str, Any]:
        """What the action `stores` says. Raises: DiskError, StoreUnreachable."""
        try:
            answer = json.loads(self._ask("", "stores", None))
            if isinstance(answer, dict):
                return answer
        except ValueError:
            pass
        raise self._not_ours("no JSON object is what it says of its stores")

    def _ask(self, name: str, action: str, stop: threading.Event | None, **fields: Any) -> bytes:
        """The results of an action. Raises: FileNotFoundError, StoreDamaged, StoreUnreachable, DiskError."""
        body = b"" if action == "stores" else encode_request(store=self._address.store, **fields)
        most = fields.get("length") or FILE_CHUNK

        def act(client: Any) -> bytes:
            results = client.do_action(_flight().Action(action, body), self._call_options(most))
            parts, size = [], 0
            for result in results:
                parts.append(result.body.to_pybytes())
                size += len(parts[-1])
                if size > most:
                    raise self._not_ours(f"more came than the {most} bytes that were asked for")
            return b"".join(parts)

        try:
            return self._call(name, act, stop)
        except FileNotFoundError:
            if name == MANIFEST:
                raise StoreNotFound(f"{self._address.server} serves no such store; {self._offer()}") from None
            raise

    def _offer(self) -> str:
        names = self._limits().get("stores")
        return f"it serves {', '.join(map(repr, names))}" if isinstance(names, list) else "it names none"

    def _value(self, chunk: Any, place: tuple[int, int, int]) -> memoryview:
        """The row of a batch: what comes over a network is looked at before it is used."""
        shard, offset, length = place
        batch = chunk.data
        batch.validate(full=True)
        if batch.num_rows != 1 or batch.num_columns != 1 or str(batch.schema.types[0]) != "large_binary":
            raise self._not_ours(f"a batch is {batch.num_rows} rows of {batch.schema.types}")
        value = batch.column(0)[0].as_buffer()
        if value is None:
            note = Note.decode(bytes(chunk.app_metadata or b""))
            why = "the server cannot read it" if note.damaged else "the shard is missing, or not what it was"
            raise StoreDamaged(self / f"shard-{shard:05d}.lmdb", why)
        if len(value) != length:
            raise self._not_ours(f"{len(value)} bytes came where {length} were asked for")
        return memoryview(value).toreadonly()

    def _not_ours(self, why: str) -> StoreDamaged:
        return StoreDamaged(str(self), f"it answers what it should not: {why}", "is it roivault's server?")

    def _clean(self, error: Exception) -> str:
        text = super()._clean(error)
        if "Socket closed" not in text:
            return text
        wanted = "a certificate of the client" if self._address.tls else "grpc+tls://"
        return f"{text}; perhaps the server wants {wanted}"

    def _call(self, name: str, act: Callable[[Any], T], stop: threading.Event | None) -> T:
        return self._patiently(name, lambda connection, _: connection.call(act), stop)

    def _system_here(self) -> Connection:
        return self._connection

    def _make(self) -> Any:
        options = self._access.certificates() if self._address.tls else {}
        return _flight().connect(self._address.server, generic_options=_OPTIONS, **options)

    def _call_options(self, size: int) -> Any:
        least = _SECONDS if self._answered and self.patience == math.inf else _FIRST_SECONDS
        seconds = least + size / _LEAST_SPEED
        return _flight().FlightCallOptions(timeout=seconds, headers=self._access.headers())

    def _refuse_lasting(self, name: str, error: Exception) -> None:
        """Raise what no second try would mend."""
        if isinstance(error, (RoivaultError, OSError)):
            raise error
        import pyarrow as pa

        flight, code = _flight(), _code(error)
        said = self._clean(error)
        place = self / name if name else str(self)
        if isinstance(error, flight.FlightUnauthenticatedError):
            raise DiskError(
                f"{self}: the server wants a token, or another one ({said}); give token=, or set ROIVAULT_TOKEN"
            ) from None
        if isinstance(error, flight.FlightUnauthorizedError):
            raise DiskError(f"{self}: the token is not for this store ({said}); {self._offer()} for it") from None
        if code == DRAINING and self.patience < math.inf:
            raise StoreUnreachable(f"{self}: the server is ending ({said})") from None
        if code == NOT_FOUND:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", place) from None
        if code == DATA_LOSS:
            raise StoreDamaged(place, f"the server cannot read it ({said})", "look into its log") from None
        if code == INVALID_ARGUMENT and self._address.store is None:
            raise UsageError(f"{self}: {said}; give {self}/NAME") from None
        if code in (INVALID_ARGUMENT, TOO_LARGE):
            raise DiskError(f"{place}: the server refuses it ({said}): are client and server one version?") from None
        if any(text in str(error) for text in _UNTRUSTED):
            raise DiskError(
                f"{self}: the certificate of the server is not trusted ({said}); give tls_ca=, or set ROIVAULT_TLS_CA"
            ) from None
        if isinstance(error, pa.ArrowNotImplementedError):
            raise self._not_ours(said) from None
        if not isinstance(error, (flight.FlightError, pa.ArrowException)):
            raise error  # a mistake of our own
        if not code:  # else it is the server that asks for patience
            self._connection.close()


def _shard_number(name: str) -> int | None:
    number = name.removeprefix("shard-").removesuffix(".lmdb")
    return int(number) if name == f"shard-{number}.lmdb" and number.isdecimal() else None


def _code(error: Exception) -> str:
    """Of wire.py, of what the server refused."""
    return bytes(getattr(error, "extra_info", b"") or b"").decode(errors="replace")


def _flight() -> Any:
    try:
        import pyarrow.flight as flight
    except ImportError:
        raise UsageError("stores of a feature server need pyarrow: pip install 'roivault[server]'") from None
    return flight
