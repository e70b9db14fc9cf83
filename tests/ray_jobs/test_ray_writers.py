"""Several writers of one store: what they make is what one writer makes, whoever of them is lost."""

import os
import shutil
import signal
import threading
import time
from concurrent.futures import Future, wait

import pytest

from cache import DiskError, InfrastructureLost, open_store, remote_lock
from ray_jobs.work import UNIT

ray = pytest.importorskip("ray")

COUNT = 6 * UNIT + 5
SHARD = 60_000  # bytes; a few pictures


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    """This process is connected to a node of three CPUs; returns what adds others."""
    ray_cluster(num_cpus=3)
    yield ray_cluster
    ray.shutdown()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(remote_lock, "_LOOK", 0.02)


@pytest.fixture
def whole(job, photos, tmp_path, contents):
    """The pictures, one of them bad, and what a store of them holds when nothing goes wrong."""
    folder = photos(COUNT)
    (folder / "bad.png").write_bytes(b"no picture")
    job(folder, tmp_path / "whole.roi", max_failures="1")
    return folder, contents(tmp_path / "whole.roi")


@pytest.fixture
def writers(ray_job, tmp_path):
    """Runs a job with two writers, or `count`."""

    def run(source, output, settings=None, count=2, **options):
        options = {"shard_size": SHARD, "work": str(tmp_path / "work"), **options}
        return ray_job(source, output, settings, writers=count, **options)

    return run


def holds_once(store, expected, contents):
    """Whether a store holds what it should, each record in one shard, and nothing is left beside it."""
    manifest = open_store(str(store)).manifest
    records = sum(shard.records for shard in manifest.shards)
    files = {name for shard in manifest.shards for name in (shard.file, shard.index_file)}
    there = {path.name for path in store.iterdir() if path.name.startswith(("shard-", "writer"))}
    assert (records, there) == (sum(not isinstance(held, str) for held in expected.values()), files)
    return contents(store) == expected


def test_the_store_is_the_one_of_a_single_writer(cluster, writers, ray_job, whole, tmp_path, contents, picture):
    folder, expected = whole
    store = tmp_path / "shared" / "s.roi"
    summary = writers(folder, store)
    assert (summary.listed, summary.new, summary.failures, summary.exit_code) == (
        COUNT + 1, COUNT, {"not_an_image": 1}, 0,
    )  # fmt: skip
    assert summary.regions == 4 * COUNT and sorted(ray_job.seen()) == [f"{i:04d}.png" for i in range(COUNT)]
    shards = open_store(str(store)).manifest.shards
    assert len(shards) > 4 and all(shard.provenance[0]["engine"] == "ray" for shard in shards)
    assert holds_once(store, expected, contents) and not list((tmp_path / "work").glob("writers*"))

    again = writers(folder, store, count=3, work=str(tmp_path / "new"))
    assert (again.already, again.new, again.device) == (COUNT, 0, None)
    picture(folder / "bad.png", 1000)
    picture(folder / "0003.png", 1001)
    mended = writers(folder, store, count=3, retry_failed=True, refresh_changed=True)
    assert (mended.records, mended.new, mended.refreshed, mended.retried, mended.already) == (
        COUNT + 1, 1, 1, 1, COUNT - 1,
    )  # fmt: skip
    reference = ray_job(folder, tmp_path / "reference.roi")
    assert (reference.records, contents(store)) == (COUNT + 1, contents(tmp_path / "reference.roi"))


def processes():
    """Those of the writers."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline") as line:
                if line.read().startswith("ray::Writer"):
                    found.append(int(name))
        except OSError:
            pass
    return found


def wait_for(condition):
    end = time.monotonic() + 100
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def registered(store):
    """Keys of the shards at a place where writers bring them."""
    return set(open_store(str(store)).keys()) if (store / "manifest.json").exists() else set()


@pytest.fixture
def begun(writers, ray_job, tmp_path):
    """Starts a job that ends after the returned function is called, which gives its summary."""
    ended = Future()

    def run(source, options):
        try:
            ended.set_result(writers(source, tmp_path / "shared" / "s.roi", {"hold": "0050.png"}, **options))
        except BaseException as error:
            ended.set_exception(error)

    def end():
        ray_job.gate.touch()
        return ended.result(200)

    def start(source, **options):
        threading.Thread(target=run, args=[source, options]).start()
        return end

    yield start
    ray_job.gate.touch()
    wait([ended], 200)


@pytest.mark.slow
def test_a_killed_writer_loses_nothing(cluster, begun, ray_job, whole, tmp_path, contents):
    folder, expected = whole
    store, end = tmp_path / "shared" / "s.roi", begun(folder, shard_size="1GB")
    assert wait_for(lambda: len(ray_job.seen()) > COUNT // 2) and wait_for(lambda: len(processes()) == 2)
    there = processes()
    os.kill(there[0], signal.SIGKILL)
    summary = end()
    assert (summary.records, summary.new, summary.failures) == (COUNT, COUNT, {"not_an_image": 1})
    assert summary.regions == 4 * COUNT and len(ray_job.seen()) > COUNT, "what it had was done again"
    assert holds_once(store, expected, contents)


@pytest.mark.slow
def test_the_node_of_a_writer_is_lost_with_what_it_had(cluster, begun, ray_job, whole, tmp_path, contents):
    folder, expected = whole
    node = cluster(num_cpus=2)
    store, end = tmp_path / "shared" / "s.roi", begun(folder)
    assert wait_for(lambda: registered(store)) and wait_for(lambda: len(processes()) == 2)
    before = processes()
    cluster.cluster.remove_node(node, allow_graceful=False)
    kept = registered(store)
    summary = end()
    assert (summary.records, summary.new, summary.failures) == (COUNT, COUNT, {"not_an_image": 1})
    seen = ray_job.seen()
    assert len(before) == 2 and not any(seen.count(key) > 1 for key in kept), "what is registered is not done again"
    assert holds_once(store, expected, contents)


@pytest.mark.slow
@pytest.mark.parametrize("full", ["work", "shared"])
def test_a_full_disk_is_named_and_the_job_finishes_when_there_is_room(
    cluster, writers, job, small_disk, photos, tmp_path, contents, full
):
    """The one of the writers, or the one where they bring their shards."""
    place, remount = small_disk
    places = {"work": tmp_path / "work", "shared": tmp_path / "shared", full: place / full}
    folder, store = photos(300), places["shared"] / "s.roi"
    options = {"work": str(places["work"]), "dtype": "float32"}
    with pytest.raises(DiskError, match=f"the disk at {place} is full") as failed:
        writers(folder, store, shard_size="1GB" if full == "work" else SHARD, **options)
    assert failed.value.exit_code == 74 and (full == "shared" or "writer" in str(failed.value))
    kept = len(registered(store))
    assert bool(kept) == (full == "shared")
    remount("size=20m")
    summary = writers(folder, store, **options)
    assert (summary.records, summary.already) == (300, kept)
    job(folder, tmp_path / "reference.roi", dtype="float32")
    assert holds_once(store, contents(tmp_path / "reference.roi"), contents)


@pytest.mark.slow
def test_what_was_lost_of_a_stream_is_for_the_next_run(cluster, begun, writers, whole, tmp_path, contents):
    """The members of a compressed archive are read once."""
    folder, expected = whole
    archive = shutil.make_archive(str(tmp_path / "photos"), "gztar", folder)
    store, end = tmp_path / "shared" / "s.roi", begun(f"archive:{archive}")
    assert wait_for(lambda: registered(store)) and wait_for(lambda: len(processes()) == 2)
    os.kill(processes()[0], signal.SIGKILL)
    with pytest.raises(InfrastructureLost, match="by a stream"):
        end()
    kept = len(registered(store))
    summary = writers(f"archive:{archive}", store)
    assert (summary.records, summary.already) == (COUNT, kept) and holds_once(store, expected, contents)
