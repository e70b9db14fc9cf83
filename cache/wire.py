"""What a feature server and its clients say to each other, over Arrow Flight. One file, used by both sides.

Every request is JSON, in UTF-8, with `"v": 1`, the name of a `store` (null, where a token may read only one) and
nothing but the fields named here.

    DoGet         ticket {v, store, keys}. Answer: one record batch a key, in the order asked, of `record_schema`. Its
                  one row is the stored record, untouched: `cache.record.decode` checks that it is that key's. Where
                  there is none the row is null and the metadata of the batch are JSON: {"missing": true}; {"failure":
                  {kind, message, source}}; {"damaged": true}, the server's copy cannot be read.
                  Or ticket {v, store, places}, each [shard number, offset, length] as an index tells it: the row is
                  those bytes of a sealed shard, {"missing": true} where it has none. Nothing is looked up, and a
                  client goes on reading what its manifest lists, whatever has been added since.
    DoExchange    The same, any number of times on one stream, asked ahead of the answers: each request comes as the
                  metadata of a message of its own. Answers come in order; before the batches of each is a message
                  with metadata only, {"request": its number from 0, "keys": their count}. What a DoGet would be
                  refused for ends the stream. It ends well when the client is done writing and all is answered.
    GetFlightInfo command {v, store, keys} -> endpoints with a ticket for some of the keys each, total_records and
                  total_bytes of what the store has of all of them. It reads no record.
    DoAction      Answers are JSON, except those of `manifest` and `index`, whose results joined are bytes of a file.
        health    no body, no token -> {"status": "serving" or "draining"}
        stores    no body -> {"stores": [names], "max_keys", "max_request_bytes"}
        stats     {v, store} -> {"records", "failures", "bytes", "shards", "dim", "feature_dtype"}
        keys      {v, store, after, limit} -> {"keys": [...], "after"}: of records, in the order of their hashes.
                  `after` is null at first, then what the page before said; null there is the end. Keys that are in
                  the store all the while come exactly once, whatever is added meanwhile.
        failures  {v, store, after, limit} -> {"failures": [{key, kind, message, source}], "after"}
        manifest  {v, store, offset, length} -> bytes of manifest.json; length null: to the end. Its first
                  `manifest.HEAD_BYTES` tell whether it is another than before.
        index     {v, store, file, offset, length} -> bytes of an index file: of a shard, as the manifest names it,
                  with its size and checksum; or index.idx, if it is of use.

A server offers what is sealed, and its manifest lists nothing else. A shard that is sealed later appears by itself.

The token is in the header `authorization`, "Bearer TOKEN", of every call; clients send it over TLS or to this machine
only. Refusals are Flight errors, whose extra_info is one of the words below; those that are worth another try are
FlightUnavailableError: DRAINING (the server is ending) and RESOURCE_EXHAUSTED (too many streams, or too fast a client).
FlightUnauthenticatedError: no token, or a wrong one. FlightUnauthorizedError: not for this store. FlightServerError:
INVALID_ARGUMENT, TOO_LARGE (names the limit), NOT_FOUND (no such store or file), DATA_LOSS (the server cannot read its
store). FlightInternalError: a bug. Messages name limits; never paths of the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .errors import DataError

VERSION = 1
PORT = 8815
MAX_KEYS = 4096  # of a request
MAX_REQUEST_BYTES = 8 << 20
MAX_PLACE_BYTES = 1 << 28  # of one place
MAX_PAGE = 10_000
FILE_CHUNK = 1 << 20  # bytes of a result of `manifest` and `index`
AUTHORIZATION = "authorization"
BEARER = "Bearer "

INVALID_ARGUMENT, TOO_LARGE, NOT_FOUND, DATA_LOSS = "INVALID_ARGUMENT", "TOO_LARGE", "NOT_FOUND", "DATA_LOSS"
RESOURCE_EXHAUSTED, DRAINING = "RESOURCE_EXHAUSTED", "DRAINING"

_COUNT_LIMIT = 1 << 62


def _is_place(value: Any) -> bool:
    counts = isinstance(value, list) and len(value) == 3 and all(type(v) is int and v >= 0 for v in value)
    return counts and value[1] < _COUNT_LIMIT and value[2] <= MAX_PLACE_BYTES


_KINDS = {
    "places": (
        lambda v: isinstance(v, list) and all(map(_is_place, v)),
        f"a list of [shard number, offset, length], each of at most {MAX_PLACE_BYTES} bytes",
    ),
    "keys": (lambda v: isinstance(v, list) and all(isinstance(key, str) for key in v), "a list of texts"),
    "store": (lambda v: v is None or isinstance(v, str), "a name or null"),
    "file": (lambda v: isinstance(v, str), "a name"),
    "after": (lambda v: v is None or isinstance(v, str), "what the page before said, or null"),
    "limit": (lambda v: type(v) is int and 0 < v <= MAX_PAGE, f"a whole number from 1 to {MAX_PAGE}"),
    "offset": (lambda v: type(v) is int and 0 <= v < _COUNT_LIMIT, "a whole number from 0"),
    "length": (lambda v: v is None or (type(v) is int and 0 <= v < _COUNT_LIMIT), "a whole number from 0, or null"),
}

RECORDS = ("store", "keys")  # fields of a ticket, an exchanged request, and the command of a descriptor
PLACES = ("store", "places")  # of a ticket or an exchanged request, otherwise
ACTIONS: dict[str, tuple[tuple[str, ...] | None, str]] = {  # name -> (fields of its body, what it is)
    "health": (None, "Whether the server takes requests; needs no token."),
    "stores": (None, "The stores that may be read, and the limits of a request."),
    "stats": (("store",), "What a store holds, in numbers."),
    "keys": (("store", "after", "limit"), "The keys of records, a page at a time."),
    "failures": (("store", "after", "limit"), "The failures, a page at a time."),
    "manifest": (("store", "offset", "length"), "Bytes of the manifest."),
    "index": (("store", "file", "offset", "length"), "Bytes of an index."),
}


class InvalidRequest(DataError):
    """A request that is none, or beyond a limit; `code` is INVALID_ARGUMENT or TOO_LARGE."""

    def __init__(self, message: str, code: str = INVALID_ARGUMENT):
        super().__init__(message)
        self.code = code


class Note(NamedTuple):
    """Why the row of a key is null: all None for a key that is missing.

    Attributes:
        failure: kind, message and source of its failure.
        damaged: the server cannot read its record.
    """

    failure: dict[str, str | None] | None = None
    damaged: bool = False

    def encode(self) -> bytes:
        if self.damaged:
            return b'{"damaged": true}'
        return json.dumps({"failure": self.failure} if self.failure else {"missing": True}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Note:
        """Raises: DataError: it is none."""
        try:
            note = json.loads(data)
            if note == {"missing": True}:
                return cls()
            if note == {"damaged": True}:
                return cls(damaged=True)
            (name, failure), *more = note.items()
            if name == "failure" and not more and sorted(failure) == ["kind", "message", "source"]:
                texts = failure["kind"], failure["message"]
                if all(isinstance(text, str) for text in texts) and isinstance(failure["source"], (str, type(None))):
                    return cls(failure)
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass
        raise DataError("the server answers what is not of its protocol: is it roivault's?")


def record_schema() -> Any:
    """Of the answers of DoGet and DoExchange."""
    import pyarrow as pa

    return pa.schema([pa.field("record", pa.large_binary())])


def encode_request(**fields: Any) -> bytes:
    """A request with these fields."""
    return json.dumps({"v": VERSION, **fields}).encode()


def decode_request(
    data: bytes, fields: Sequence[str], max_bytes: int = MAX_REQUEST_BYTES, *, otherwise: Sequence[str] = ()
) -> Mapping[str, Any]:
    """The fields of a request, all of which are there and of their kind: `fields`, or those of `otherwise`.

    Raises: InvalidRequest.
    """
    if len(data) > max_bytes:
        raise InvalidRequest(f"a request may have {max_bytes} bytes, this one has {len(data)}", TOO_LARGE)
    try:
        request = json.loads(data.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise InvalidRequest("the request is not JSON in UTF-8") from None
    if not isinstance(request, dict) or request.get("v") != VERSION or type(request["v"]) is not int:
        raise InvalidRequest(f'the request is no JSON object with "v": {VERSION}, the version that is spoken here')
    del request["v"]
    if request.keys() not in (set(fields), set(otherwise or fields)):
        raise InvalidRequest(f"the request has other fields than v, {', '.join(fields)}")
    for name, value in request.items():
        fits, kind = _KINDS[name]
        if not fits(value):
            raise InvalidRequest(f"{name} is to be {kind}")
    return request


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Raises: ValueError: a name occurs twice, and nobody knows which one is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
