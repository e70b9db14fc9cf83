"""A feature server's counts for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .errors import StoreDamaged
from .server_limits import Gate
from .server_stores import ServedStore

if TYPE_CHECKING:
    from .server_calls import Call

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 60)


class ServerMetrics:
    """Counts calls that have ended. Its `registry` is what `endpoints.serve_registry` serves."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def metric(kind: type, name: str, text: str, *labels: str, **options: Any) -> Any:
            return kind(f"roivault_server_{name}", text, labels, registry=self.registry, **options)

        self._calls = metric(Counter, "calls", "Calls that have ended.", "method", "status")
        self._seconds = metric(Histogram, "call_seconds", "How long calls took.", "method", buckets=_SECONDS)
        self._counts = {
            "keys": metric(Counter, "keys", "Keys that were asked for.", "store"),
            "records": metric(Counter, "records", "Records that were handed on.", "store"),
            "missing": metric(Counter, "missing", "Keys without a record that were asked for.", "store"),
            "nbytes": metric(Counter, "bytes", "Bytes that were handed on.", "store"),
        }

    def watch(self, stores: Mapping[str, ServedStore], gate: Gate) -> None:
        """Also tell how things stand whenever they are asked for."""
        self.registry.register(_State(stores, gate))

    def __call__(self, call: Call) -> None:
        self._calls.labels(call.method, call.status).inc()
        self._seconds.labels(call.method).observe(call.seconds)
        if call.store is not None:
            for name, counter in self._counts.items():
                counter.labels(call.store).inc(getattr(call, name))


class _State:
    def __init__(self, stores: Mapping[str, ServedStore], gate: Gate):
        self._stores, self._gate = stores, gate

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily("roivault_server_streams", "Calls that run.", len(self._gate))
        yield GaugeMetricFamily("roivault_server_draining", "1 once nothing new is let in.", int(self._gate.closed))
        families = {
            "records": GaugeMetricFamily("roivault_store_records", "Records of a store.", labels=["store"]),
            "shards": GaugeMetricFamily("roivault_store_shards", "Sealed shards of a store.", labels=["store"]),
            "bytes": GaugeMetricFamily("roivault_store_bytes", "Bytes of these shards.", labels=["store"]),
        }
        for name, store in self._stores.items():
            try:
                stats = store.stats()
            except StoreDamaged:
                continue  # the calls tell of it
            for count, family in families.items():
                family.add_metric([name], stats[count])
        yield from families.values()
