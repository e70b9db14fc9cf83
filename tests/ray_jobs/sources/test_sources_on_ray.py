"""Items of every source travel to the tasks of a cluster, those that carry their images included."""

import pytest

from ray_jobs.sources import SOURCES, source_class

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    ray_cluster(num_cpus=2)
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", SOURCES)
def test_the_store_is_the_one_that_the_local_engine_makes(name, build, ray_job, job, tmp_path, contents):
    expected = build(source_class(name).examples, tmp_path / "data")
    job(f"{name}:{tmp_path}/data", tmp_path / "local.roi")
    summary = ray_job(f"{name}:{tmp_path}/data", tmp_path / "ray.roi")
    assert (summary.records, summary.failed) == (len(expected), 0)
    assert contents(tmp_path / "ray.roi") == contents(tmp_path / "local.roi")
