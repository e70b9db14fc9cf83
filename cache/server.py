"""The feature server: keys in, a stream of stored records out, over Arrow Flight. `cache/wire.py` tells the protocol.

Records are never copied in Python: a batch refers to the mapped shard, and gRPC sends from there. Each stream has a
thread of its own, in which a slow reader waits with nothing in its hands but such references.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from . import wire
from .server_access import Tokens
from .server_calls import CANCELLED, MIDDLEWARE, OK, UNAUTHORIZED, Call, Calls
from .server_limits import Gate, Limits
from .server_stores import ServedStore
from .wire import InvalidRequest, Note, decode_request, encode_request

Answers = Iterator[list[memoryview | Note]]

_SCHEMA = wire.record_schema()
_TYPE = _SCHEMA.field(0).type
_NULL = pa.RecordBatch.from_arrays([pa.nulls(1, _TYPE)], schema=_SCHEMA)
_ENDPOINT_KEYS = 256  # so that those who follow GetFlightInfo can fetch in parallel
_SHUTDOWN_SECONDS = 2.0  # for streams that have nothing to do


class FeatureServer(flight.FlightServerBase):
    """Serves from the moment it is made, in threads of its own, until `drain`.

    Args:
        location: where to listen, such as grpc://127.0.0.1:8815; port 0 takes a free one, see `port`.
        stores: by name.
        tokens: whose bearers may ask; None: everybody may.
        limits: of requests.
        ended: told of each call that has ended.
        options: of FlightServerBase, such as tls_certificates.

    Attributes:
        stores: by name.
        gate: which calls run.
        asks_for_tokens: of its clients.
    """

    def __init__(
        self,
        location: str,
        stores: Mapping[str, ServedStore],
        tokens: Tokens | None = None,
        limits: Limits | None = None,
        ended: Sequence[Callable[[Call], object]] = (),
        **options: Any,
    ):
        self.stores, self.gate = stores, Gate(limits or Limits())
        self.asks_for_tokens = tokens is not None
        self._drained: bool | None = None
        super().__init__(location, middleware={MIDDLEWARE: Calls(tokens, self.gate, ended)}, **options)

    def drain(self, seconds: float) -> bool:
        """Refuse what is new, let what runs end, and shut down, once; whether all has ended in this time."""
        if self._drained is not None:
            return self._drained
        self.gate.close()
        ended = self.gate.wait(seconds)
        shutdown = threading.Thread(target=self.shutdown, daemon=True)  # it waits for every stream, for ever
        shutdown.start()
        shutdown.join(_SHUTDOWN_SECONDS)
        self._drained = ended and not shutdown.is_alive()
        return self._drained

    # -- records

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        call = Call.of(context)
        with call.told():
            call.enter()
            return flight.GeneratorStream(_SCHEMA, _stream(call, self._answers(call, ticket.ticket)))

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        call = Call.of(context)
        with call.told():
            call.enter()
            call.rest()
            for number, request in enumerate(_requests(reader)):
                call.enter()
                before = call.keys
                answers = self._answers(call, request)
                if not number:
                    writer.begin(_SCHEMA)
                writer.write_metadata(json.dumps({"request": number, "keys": call.keys - before}).encode())
                for are_notes, run in _runs(call, answers):
                    if are_notes:
                        for note in run:
                            writer.write_with_metadata(_NULL, note.encode())
                    else:
                        writer.write_table(_table(run))
                call.rest()

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        call = Call.of(context)
        with call.told():
            call.enter()
            request = self._request(descriptor.command or b"", wire.RECORDS)
            store, keys = self._store(call, request["store"]), request["keys"]
            call.ask(len(keys))
            records, size = store.size_of(keys)
            parts = (keys[start : start + _ENDPOINT_KEYS] for start in range(0, len(keys), _ENDPOINT_KEYS))
            tickets = (encode_request(store=store.name, keys=part) for part in parts)
            endpoints = [flight.FlightEndpoint(ticket, []) for ticket in tickets]
            return flight.FlightInfo(_SCHEMA, descriptor, endpoints, records, size)

    def _answers(self, call: Call, data: bytes) -> Answers:
        request = self._request(data, wire.RECORDS, otherwise=wire.PLACES)
        store = self._store(call, request["store"])
        if "places" in request:
            call.ask(len(request["places"]))
            return store.records_at(request["places"])
        call.ask(len(request["keys"]))
        return store.records(request["keys"])

    # -- everything else

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        call = Call.of(context)
        if action.type in wire.ACTIONS:
            call.method += f" {action.type}"
        with call.told():
            if action.type == "health":
                results = [json.dumps({"status": "draining" if self.gate.closed else "serving"}).encode()]
            else:
                call.enter()
                results = self._results(call, action.type, action.body.to_pybytes())
            for data in results:
                call.nbytes += len(data)
                yield flight.Result(data)

    def _results(self, call: Call, action: str, body: bytes) -> Iterable[bytes]:
        if action not in wire.ACTIONS:
            raise InvalidRequest(f"there is no action of this name; there are {', '.join(wire.ACTIONS)}")
        fields = wire.ACTIONS[action][0]
        if fields is None:
            stores = [name for name in self.stores if call.access.may_read(name)]
            limits = {"max_keys": self.gate.limits.keys, "max_request_bytes": self.gate.limits.request_bytes}
            return [json.dumps({"stores": stores, **limits}).encode()]
        request = self._request(body, fields)
        store = self._store(call, request.pop("store"))
        answer = getattr(store, action)(**request)
        return answer if action in ("manifest", "index") else [json.dumps(answer).encode()]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        call = Call.of(context)
        with call.told():
            call.enter()
            return [(name, text) for name, (_, text) in wire.ACTIONS.items()]

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Of all records; that is no secret, and what was raised here would reach the client with a traceback."""
        return flight.SchemaResult(_SCHEMA)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        self._refuse(context, "flights are not listed: the action `stores` names what there is")

    def do_put(self, context: flight.ServerCallContext, *_: Any) -> None:
        self._refuse(context, "nothing can be put here: stores are only read")

    def _refuse(self, context: flight.ServerCallContext, why: str) -> None:
        call = Call.of(context)
        with call.told():
            call.enter()
            raise InvalidRequest(why)

    # -- what a request is about

    def _request(self, data: bytes, fields: Sequence[str], otherwise: Sequence[str] = ()) -> dict[str, Any]:
        return decode_request(data, fields, self.gate.limits.request_bytes, otherwise=otherwise)

    def _store(self, call: Call, name: str | None) -> ServedStore:
        """Raises: InvalidRequest, FlightUnauthorizedError."""
        if name is None:
            names = [name for name in self.stores if call.access.may_read(name)]
            if len(names) != 1:
                raise InvalidRequest(f"store is to be one of {', '.join(names)}")
            (name,) = names
        if not call.access.may_read(name):
            call.status = UNAUTHORIZED
            raise flight.FlightUnauthorizedError(f"the token is not for the store {name!r}")
        if name not in self.stores:
            raise InvalidRequest(f"no store {name!r} is served here", wire.NOT_FOUND)
        call.store = name
        return self.stores[name]


def _requests(reader: flight.MetadataRecordBatchReader) -> Iterator[bytes]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.app_metadata is None:
            raise InvalidRequest("a request is the metadata of a message, this message has none")
        yield chunk.app_metadata.to_pybytes()


def _stream(call: Call, answers: Answers) -> Iterator[Any]:
    """What a GeneratorStream takes: batches with metadata, and runs of batches without."""
    with call.told():
        call.status = CANCELLED  # unless somebody reads to the end
        for are_notes, run in _runs(call, answers):
            if are_notes:
                yield from ((_NULL, note.encode()) for note in run)
            else:
                yield flight.RecordBatchStream(_table(run))
        call.status = OK


def _runs(call: Call, answers: Answers) -> Iterator[tuple[bool, list[Any]]]:
    """Runs of notes, and of records; each is counted once it is handed on."""
    for values in answers:
        for are_notes, run in groupby(values, lambda value: isinstance(value, Note)):
            run = list(run)
            yield are_notes, run
            if are_notes:
                call.missing += len(run)
            else:
                call.records += len(run)
                call.nbytes += sum(map(len, run))


def _table(values: Iterable[memoryview]) -> pa.Table:
    """A batch for each record."""
    records = [pa.Array.from_buffers(_TYPE, 1, [None, _offsets(len(v)), pa.py_buffer(v)]) for v in values]
    return pa.Table.from_arrays([pa.chunked_array(records, _TYPE)], schema=_SCHEMA)


@lru_cache(4096)
def _offsets(length: int) -> pa.Buffer:
    return pa.py_buffer(np.array([0, length], np.int64))
