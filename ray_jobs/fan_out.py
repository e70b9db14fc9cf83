"""Many runs, each done once: here one after another, or as tasks of a Ray cluster. The table of results is the journal.

A run whose row says that it is done is not repeated; one that failed is tried again, and costs the others nothing.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cache import DataError, InfrastructureLost, RoivaultError, UsageError
from consumers.results import Row, Table

MOST_TRIES = 3  # of a run whose worker or node was lost
WAIT_SECONDS = 1.0

log = logging.getLogger("roivault")

Work = Callable[[Any], dict[str, Any]]


def fan_out(
    runs: Sequence[Any],
    work: Work,
    table: Table,
    address: str | None = None,
    ray: bool = False,
    gpu: bool = False,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Do the runs that the table has no finished row of.

    Args:
        runs: dataclasses of plain data.
        work: what a run is done by, its result a JSON object; must pickle for Ray.
        address, ray: on a Ray cluster, or one of this machine alone; else here, one after another.
        gpu: a run takes a GPU of the cluster, if there are any, and its share of the machine's CPUs; else all of these.
        stop: asked between runs; those that are under way are given up.
        report: called with each new row.

    Returns: the rows of all runs that have one, in the order of `runs`.

    Raises:
        UsageError, OSError: the table's folder cannot be made or written to; told before anything is done.
        InfrastructureLost: the cluster is gone.
    """
    _prepare(table.path.parent)
    left = [run for run in runs if not table.is_done(run)]
    results = _on_ray(left, work, address, gpu, stop) if ray or address else _here(left, work, stop)
    for run, status, facts in results:
        report(table.add(run, status, **facts))
    return [row for run in runs if (row := table.of(run))]


def exit_code(rows: Sequence[Row]) -> int:
    """Of a command whose runs have these rows: 0 without failures, what they share where all failed, else 65."""
    codes = {row["exit_code"] if row["status"] == "failed" else 0 for row in rows}
    return codes.pop() if len(codes) == 1 else DataError.exit_code if codes else 0


def show_failures(rows: Sequence[Row]) -> None:
    """Print to stderr why runs failed, what many share once."""
    for error in dict.fromkeys(row["error"] for row in rows if row["status"] == "failed"):
        print(f"Error: {error}", file=sys.stderr)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{folder} is no folder, and none can be made there") from error
    with tempfile.TemporaryFile(dir=folder):
        pass


def _attempt(work: Work, run: Any) -> tuple[str, dict[str, Any]]:
    """Status and facts of a run; whatever goes wrong in it is a fact of its own."""
    begin = time.monotonic()
    try:
        status, facts = "done", {"result": work(run)}
    except RoivaultError as error:
        status, facts = "failed", {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        log.error("%s", traceback.format_exc())
        status, facts = "failed", {"error": f"{type(error).__name__}: {error}", "exit_code": 1}
    return status, {**facts, "seconds": round(time.monotonic() - begin, 1)}


def _here(runs: Sequence[Any], work: Work, stop: Callable[[], bool]) -> Iterator[tuple[Any, str, dict]]:
    for run in runs:
        if stop():
            return
        yield run, *_attempt(work, run)


def _on_ray(
    runs: Sequence[Any], work: Work, address: str | None, gpu: bool, stop: Callable[[], bool]
) -> Iterator[tuple[Any, str, dict]]:
    from .ray_environment import prepare_environment

    if not runs:
        return
    address = prepare_environment(address)
    import ray
    from ray.exceptions import RayError

    from .ray_cluster import Cluster

    cluster = Cluster(address)
    try:
        with_gpus = [node for node in cluster.nodes if node.gpus >= 1] if gpu else []
        shares = [node.cpus // int(max(node.gpus if gpu else 1, 1)) for node in with_gpus or cluster.nodes if node.cpus]
        cpus, gpus = max(1, min(shares, default=1)), int(bool(with_gpus))
        attempt = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_attempt)
        waiting = {attempt.remote(work, run): (run, 1) for run in runs}
        while waiting and not stop():
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=WAIT_SECONDS)
            cluster.check()
            for ref in ready:
                run, tries = waiting.pop(ref)
                try:
                    yield run, *ray.get(ref)
                except RayError as error:  # a worker or a node was lost: the run itself never raises
                    cluster.check()
                    if tries < MOST_TRIES:
                        waiting[attempt.remote(work, run)] = run, tries + 1
                    else:
                        facts = {"error": f"its worker was lost {tries} times: {error}", "exit_code": 75}
                        yield run, "failed", facts
        for ref in waiting:
            ray.cancel(ref, force=True)
    except RayError as error:
        raise InfrastructureLost(f"the Ray cluster failed: {error}. Run the same line again") from error
    finally:
        cluster.close()
