"""The feature server: keys in, a stream of stored records out, over Arrow Flight. `cache/wire.py` tells the protocol.

Records are never copied in Python: a batch refers to the mapped shard, and gRPC sends from there. Each stream has a
thread of its own, in which a slow reader waits with nothing in its hands but such references.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from . import wire
from .errors import RoivaultError
from .manifest import FILE as MANIFEST
from .server_stores import ServedStore
from .wire import InvalidRequest, Note, decode_request, encode_request

_SCHEMA = wire.record_schema()
_TYPE = _SCHEMA.field(0).type
_NULL = pa.RecordBatch.from_arrays([pa.nulls(1, _TYPE)], schema=_SCHEMA)
_ENDPOINT_KEYS = 256  # so that those who follow GetFlightInfo can fetch in parallel

_log = logging.getLogger("roivault.server")


class FeatureServer(flight.FlightServerBase):
    """Serves from the moment it is made, in threads of its own, until `shutdown`.

    Args:
        location: where to listen, such as grpc://127.0.0.1:8815; port 0 takes a free one, see `port`.
        stores: by name.
        options: of FlightServerBase.
    """

    def __init__(self, location: str, stores: Mapping[str, ServedStore], **options: Any):
        self._stores = stores
        super().__init__(location, **options)

    # -- records

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with _told():
            store, keys = self._asked(ticket.ticket)
            return flight.GeneratorStream(_SCHEMA, _stream(store, keys))

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        with _told():
            for number, request in enumerate(_requests(reader)):
                store, keys = self._asked(request)
                if not number:
                    writer.begin(_SCHEMA)
                writer.write_metadata(json.dumps({"request": number, "keys": len(keys)}).encode())
                for values in store.answers(keys):
                    for are_notes, run in groupby(values, _is_note):
                        if are_notes:
                            for note in run:
                                writer.write_with_metadata(_NULL, note.encode())
                        else:
                            writer.write_table(_table(run))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with _told():
            store, keys = self._asked(descriptor.command or b"")
            records, size = store.size_of(keys)
            parts = (keys[start : start + _ENDPOINT_KEYS] for start in range(0, len(keys), _ENDPOINT_KEYS))
            tickets = (encode_request(store=store.name, keys=part) for part in parts)
            endpoints = [flight.FlightEndpoint(ticket, []) for ticket in tickets]
            return flight.FlightInfo(_SCHEMA, descriptor, endpoints, records, size)

    # -- everything else

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return [(name, text) for name, (_, text) in wire.ACTIONS.items()]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        with _told():
            for data in self._results(action.type, action.body.to_pybytes()):
                yield flight.Result(data)

    def _results(self, action: str, body: bytes) -> Iterable[bytes]:
        if action not in wire.ACTIONS:
            raise InvalidRequest(f"there is no action of this name; there are {', '.join(wire.ACTIONS)}")
        fields = wire.ACTIONS[action][0]
        request = {} if fields is None else dict(decode_request(body, fields))
        if action == "health":
            answer = {"status": "serving"}
        elif action == "stores":
            limits = {"max_keys": wire.MAX_KEYS, "max_request_bytes": wire.MAX_REQUEST_BYTES}
            answer = {"stores": list(self._stores), **limits}
        else:
            store = self._store(request.pop("store"))
            if action in ("manifest", "index"):
                return store.file(request.get("file", MANIFEST), request["offset"], request["length"])
            answer = getattr(store, action)(**request)
        return [json.dumps(answer).encode()]

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        return iter(())

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        return flight.SchemaResult(_SCHEMA)

    def do_put(self, context: flight.ServerCallContext, *_: Any) -> None:
        with _told():
            raise InvalidRequest("nothing can be put here: the stores are only read")

    # -- what a request is about

    def _asked(self, data: bytes) -> tuple[ServedStore, list[str]]:
        request = decode_request(data, wire.RECORDS)
        count = len(request["keys"])
        if count > wire.MAX_KEYS:
            raise InvalidRequest(f"a request may have {wire.MAX_KEYS} keys, this one has {count}", wire.TOO_LARGE)
        return self._store(request["store"]), request["keys"]

    def _store(self, name: str | None) -> ServedStore:
        if name is None:
            if len(self._stores) > 1:
                raise InvalidRequest(f"store is to be one of {', '.join(self._stores)}")
            return next(iter(self._stores.values()))
        if name not in self._stores:
            raise InvalidRequest(f"no store {name!r} is served here", wire.NOT_FOUND)
        return self._stores[name]


@contextmanager
def _told() -> Iterator[None]:
    """Errors as a client is to see them: only those of Flight reach it without a traceback."""
    try:
        yield
    except flight.FlightError:
        raise
    except InvalidRequest as error:
        raise flight.FlightServerError(str(error), error.code.encode()) from None
    except RoivaultError as error:
        _log.error("%s", error)
        raise flight.FlightServerError("the server cannot read its store", wire.DATA_LOSS.encode()) from None
    except (pa.ArrowException, OSError) as error:
        _log.info("a stream ended: %s", error)
        raise flight.FlightCancelledError("the stream was broken off") from None
    except Exception:
        _log.exception("a bug in the feature server")
        raise flight.FlightInternalError("a bug in the feature server: its log has the traceback") from None


def _requests(reader: flight.MetadataRecordBatchReader) -> Iterator[bytes]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.app_metadata is None:
            raise InvalidRequest("a request is the metadata of a message, this message has none")
        yield chunk.app_metadata.to_pybytes()


def _stream(store: ServedStore, keys: Sequence[str]) -> Iterator[Any]:
    """What a GeneratorStream takes: batches with metadata, and runs of batches without."""
    with _told():
        for values in store.answers(keys):
            for are_notes, run in groupby(values, _is_note):
                if are_notes:
                    yield from ((_NULL, note.encode()) for note in run)
                else:
                    yield flight.RecordBatchStream(_table(run))


def _is_note(value: memoryview | Note) -> bool:
    return isinstance(value, Note)


def _table(values: Iterable[memoryview]) -> pa.Table:
    """A batch for each record."""
    records = [pa.Array.from_buffers(_TYPE, 1, [None, _offsets(len(v)), pa.py_buffer(v)]) for v in values]
    return pa.Table.from_arrays([pa.chunked_array(records, _TYPE)], schema=_SCHEMA)


@lru_cache(4096)
def _offsets(length: int) -> pa.Buffer:
    return pa.py_buffer(np.array([0, length], np.int64))
