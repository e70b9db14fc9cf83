"""`--metrics-port`: a running job's counts for Prometheus, read from its tally whenever they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cache.endpoints import serve_registry

from .tally import STAGES, Tally


@contextmanager
def serve_metrics(tally: Tally, endpoint: str | None, **build: Any) -> Iterator[str | None]:
    """Serve the metrics of a job over HTTP while it runs, and say on stderr where.

    Args:
        tally: what the job has done so far.
        endpoint: see `cache.endpoints.parse_endpoint`; port 0 picks a free one; None serves nothing.
        build: labels of `roivault_job_info`, such as version and model.

    Yields: the URL.

    Raises: UsageError: the port is taken or not allowed, or there is no such address here.
    """
    if endpoint is None:
        yield None
        return
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(JobCollector(tally, build))
    ProcessCollector(registry=registry)
    with serve_registry(registry, endpoint) as url:
        yield url


class JobCollector:
    """Turns a tally into metric families."""

    def __init__(self, tally: Tally, build: dict[str, Any]):
        self._tally, self._build = tally, {name: str(value) for name, value in build.items()}

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        tally = self._tally
        yield InfoMetricFamily("roivault_job", "What the job is.", value=self._build)
        gauges = {
            "images_listed": ("Inputs listed so far.", tally.listed),
            "listing_complete": ("1 once the whole listing is known.", int(tally.complete)),
            "images_done": ("Inputs whose state, a record or a failure, the store holds.", tally.done),
            "images_stored": ("Inputs with a record.", tally.records),
            "images_already_stored": ("Inputs that had a record before.", tally.already),
            "elapsed_seconds": ("Since the job began.", tally.pace.elapsed),
            "images_per_second": ("Committed over the last minute.", tally.pace.recent() or 0.0),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"roivault_{name}", text, value)
        counters = {
            "images_new": ("Records written by this run for inputs that had none.", tally.new),
            "images_refreshed": ("Records replaced because their image changed.", tally.refreshed),
            "images_retried": ("Earlier failures tried again.", tally.retried),
            "regions": ("Regions written by this run.", tally.regions),
            "bytes_written": ("Length of the values written by this run.", tally.nbytes),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"roivault_{name}", text, value)
        for name, text, unit, values in (
            ("roivault_images_failed", "Inputs with a failure, by its kind.", "kind", tally.failures),
            ("roivault_queue_images", "Images that wait in front of a stage.", "stage", tally.queues),
            ("roivault_devices", "Models at work, by device.", "device", Counter(tally.devices)),
        ):
            family = GaugeMetricFamily(name, text, labels=[unit])
            for label, value in dict(values).items():  # a copy: the job goes on counting
                family.add_metric([label], value)
            yield family
        for name, text, values in (
            ("roivault_stage_seconds", "Time spent in a stage.", tally.seconds),
            ("roivault_stage_images", "Images that went through a stage.", tally.images),
        ):
            family = CounterMetricFamily(name, text, labels=["stage"])
            for stage in STAGES:
                family.add_metric([stage], values[stage])
            yield family
