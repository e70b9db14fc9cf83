"""Nodes that come and go while a job runs."""

import threading
import time

import pytest

from ray_jobs.work import UNIT

ray = pytest.importorskip("ray")

COUNT = 12 * UNIT


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    """A head with two CPUs, one of which is left for decoding; returns what adds nodes."""
    ray_cluster(num_cpus=2)
    yield ray_cluster
    ray.shutdown()


def wait_for(condition):
    end = time.monotonic() + 100
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_a_node_that_joins_is_used_and_one_that_dies_loses_nothing(
    cluster, ray_job, job, photos, tmp_path, contents
):
    folder = photos(COUNT)
    job(folder, tmp_path / "whole.roi")
    ended = []
    run = threading.Thread(target=lambda: ended.append(ray_job(folder, tmp_path / "s.roi", {"sleep": 0.1})))
    run.start()
    assert wait_for(ray_job.seen) and len(ray_job.processes()) == 1
    node = cluster(num_cpus=2)  # here, as Ray starts nodes in the main thread alone
    assert wait_for(lambda: len(ray_job.processes()) == 2)
    there = len(ray_job.seen())
    assert wait_for(lambda: len(ray_job.seen()) > there + UNIT)
    cluster.cluster.remove_node(node, allow_graceful=False)
    assert len(ray_job.seen()) < COUNT and not ended
    run.join(100)
    (summary,) = ended
    assert (summary.records, summary.failed) == (COUNT, 0)
    assert contents(tmp_path / "s.roi") == contents(tmp_path / "whole.roi")
