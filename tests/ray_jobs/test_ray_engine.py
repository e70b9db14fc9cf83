"""The Ray engine on one cluster of this machine: as many come out as went in, the same as without Ray."""

import os
import signal
import sys
import threading
import time
import types
from dataclasses import replace

import pytest
from PIL import Image

from cache import DiskError, InfrastructureLost, StoreLocked, StoreWriter, WeightsError, open_store
from ray_jobs import extract
from ray_jobs.options import ExtractOptions
from ray_jobs.work import UNIT

ray = pytest.importorskip("ray")

COUNT = 4 * UNIT + 6


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    """This process is connected to a cluster of three CPUs and two GPUs that no program can see."""
    ray_cluster(num_cpus=3, num_gpus=2)
    yield
    ray.shutdown()


@pytest.fixture
def whole(job, photos, tmp_path, contents):
    """The pictures, one of them bad, and what a store of them holds when nothing goes wrong."""
    folder = photos(COUNT)
    (folder / "bad.png").write_bytes(b"no picture")
    job(folder, tmp_path / "whole.roi", max_failures="1")
    return folder, contents(tmp_path / "whole.roi")


def test_the_store_is_the_one_that_the_local_engine_makes(ray_job, whole, tmp_path, contents):
    folder, expected = whole
    summary = ray_job(folder, tmp_path / "s.roi")
    assert (summary.listed, summary.records, summary.failed) == (COUNT + 1, COUNT, 1)
    assert (summary.engine, summary.device, summary.threads, summary.exit_code) == ("ray", "cpu", 1, 0)
    assert contents(tmp_path / "s.roi") == expected
    assert sorted(ray_job.seen()) == [f"{i:04d}.png" for i in range(COUNT)]
    store = open_store(str(tmp_path / "s.roi"))
    assert [shard.provenance[0]["engine"] for shard in store.manifest.shards] == ["ray"]
    assert [f.source for f in store.failures()] == [str(folder / "bad.png")]
    again = ray_job(folder, tmp_path / "s.roi")
    assert (again.already, again.new, again.device) == (COUNT, 0, None)


def test_a_killed_model_loses_nothing(ray_job, whole, tmp_path, contents):
    folder, expected = whole
    killed = {"die": "0021.png", "once": tmp_path / "died"}
    summary = ray_job(folder, tmp_path / "s.roi", killed)
    assert (tmp_path / "died").exists() and len(ray_job.processes()) > summary.threads
    assert (summary.records, summary.failures) == (COUNT, {"not_an_image": 1})
    assert contents(tmp_path / "s.roi") == expected


def test_an_image_that_kills_every_model_is_found_and_named(ray_job, whole, tmp_path, contents):
    folder, expected = whole
    summary = ray_job(folder, tmp_path / "s.roi", {"die": "0021.png"})
    assert (summary.records, summary.failures) == (COUNT - 1, {"worker_crash": 1, "not_an_image": 1})
    assert contents(tmp_path / "s.roi") == {**expected, "0021.png": "worker_crash"}
    failure = next(f for f in open_store(str(tmp_path / "s.roi")).failures() if f.kind == "worker_crash")
    assert failure.source == str(folder / "0021.png") and "2 times with this image alone" in failure.message
    mended = ray_job(folder, tmp_path / "s.roi", retry_failed=True)
    assert (mended.records, mended.retried) == (COUNT, 2) and contents(tmp_path / "s.roi") == expected


def test_an_image_at_which_the_model_hangs_is_found_and_named(ray_job, whole, tmp_path, contents):
    folder, expected = whole
    summary = ray_job(folder, tmp_path / "s.roi", {"hold": "0050.png"}, timeout=1)
    assert (summary.records, summary.failures) == (COUNT - 1, {"timeout": 1, "not_an_image": 1})
    assert contents(tmp_path / "s.roi") == {**expected, "0050.png": "timeout"}


def test_a_stopped_model_is_replaced_and_its_late_results_change_nothing(ray_job, whole, tmp_path, contents):
    folder, expected = whole
    stopped = []

    def stop():
        while not ray_job.seen():
            time.sleep(0.01)
        stopped.extend(ray_job.processes())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        while not set(ray_job.processes()) - set(stopped):
            time.sleep(0.01)
        for pid in stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    thread = threading.Thread(target=stop)
    thread.start()
    summary = ray_job(folder, tmp_path / "s.roi", {"sleep": 0.02}, timeout=1)
    thread.join(60)
    assert stopped and (summary.records, summary.failures) == (COUNT, {"not_an_image": 1})
    assert contents(tmp_path / "s.roi") == expected


class Deadly:
    """A locator of a picture whose decoding kills the process, or never ends."""

    def __init__(self, locator, once=None, hangs=False):
        self._locator, self._once, self._hangs = locator, once, hangs

    def read(self, key, policy, limit=None):
        if self._once is None or not os.path.exists(self._once):
            if self._once is not None:
                open(self._once, "w").close()
            time.sleep(100 * self._hangs)
            os.kill(os.getpid(), signal.SIGKILL)
        return self._locator.read(key, policy, limit)


@pytest.fixture
def deadly(monkeypatch):
    """Gives one key of every source a locator that is deadly."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)

    def make(key, **how):
        open_source = extract.open_source

        def open_deadly(*args):
            source = open_source(*args)
            items = source.items

            def changed():
                for item in items():
                    yield replace(item, locator=Deadly(item.locator, **how)) if item.key == key else item

            source.items = changed
            return source

        monkeypatch.setattr(extract, "open_source", open_deadly)

    yield make
    ray.cloudpickle.unregister_pickle_by_value(module)


def test_a_killed_decoding_process_loses_nothing(ray_job, whole, tmp_path, contents, deadly):
    folder, expected = whole
    deadly("0033.png", once=str(tmp_path / "died"))
    summary = ray_job(folder, tmp_path / "s.roi")
    assert (tmp_path / "died").exists() and summary.records == COUNT
    assert contents(tmp_path / "s.roi") == expected


@pytest.mark.parametrize(("hangs", "kind"), [(False, "worker_crash"), (True, "timeout")])
def test_an_image_that_cannot_be_decoded_in_any_process_is_found(
    ray_job, whole, tmp_path, contents, deadly, hangs, kind
):
    folder, expected = whole
    deadly("0033.png", hangs=hangs)
    summary = ray_job(folder, tmp_path / "s.roi", timeout=1 if hangs else 60)
    assert (summary.records, summary.failures) == (COUNT - 1, {kind: 1, "not_an_image": 1})
    assert contents(tmp_path / "s.roi") == {**expected, "0033.png": kind}


def test_a_bug_of_the_model_ends_the_job_names_the_images_and_keeps_the_rest(ray_job, whole, tmp_path, contents):
    folder, expected = whole
    with pytest.raises(RuntimeError, match=r"a bug of the model.*0069\.png"):
        ray_job(folder, tmp_path / "s.roi", {"raise": "0069.png"})
    assert ray_job(folder, tmp_path / "s.roi").records == COUNT
    assert contents(tmp_path / "s.roi") == expected


def test_a_model_that_cannot_be_loaded_ends_the_job_with_its_own_error(ray_job, photos, tmp_path):
    with pytest.raises(WeightsError, match="these are no weights"):
        ray_job(photos(2), tmp_path / "s.roi", {"load": "these are no weights"})


def test_a_process_that_dies_loading_the_model_is_not_tried_for_ever(ray_job, photos, tmp_path):
    with pytest.raises(InfrastructureLost, match="before the model was loaded"):
        ray_job(photos(2), tmp_path / "s.roi", {"load": "die"}, threads=2)
    assert len(ray_job.processes()) == 3


def test_a_module_that_the_nodes_lack_is_named(cluster, photos, tmp_path, weights, monkeypatch):
    module = types.ModuleType("only_here")
    exec("def load(choices): ...", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    options = ExtractOptions(
        str(photos(2)), str(tmp_path / "s.roi"), "demo", engine="ray", device="cpu", threads=2, quiet=True
    )
    with pytest.raises(InfrastructureLost, match="before the model was loaded.*No module named 'only_here'"):
        extract.run_extract(options, load=module.load)


def test_a_second_writer_is_refused_before_anything_starts(ray_job, photos, tmp_path):
    with StoreWriter(tmp_path / "s.roi"), pytest.raises(StoreLocked, match="is being written"):
        ray_job(photos(2), tmp_path / "s.roi")
    assert not ray_job.processes()


def test_a_full_disk_is_named_and_the_job_finishes_when_there_is_room(
    ray_job, job, small_disk, photos, tmp_path, contents
):
    place, remount = small_disk
    folder = photos(300)
    with pytest.raises(DiskError, match=f"the disk at {place} is full"):
        ray_job(folder, place / "s.roi", dtype="float32")
    kept = len(open_store(str(place / "s.roi")))
    remount("size=20m")
    assert 0 < kept == ray_job(folder, place / "s.roi").already
    job(folder, tmp_path / "whole.roi", dtype="float32")
    assert contents(place / "s.roi") == contents(tmp_path / "whole.roi")


@pytest.mark.parametrize(("models_per_gpu", "expected"), [(1, ["0", "1"]), (2, ["0", "0", "1", "1"])])
def test_every_gpu_has_its_models(ray_job, whole, tmp_path, contents, models_per_gpu, expected):
    folder, held = whole
    gpus = tmp_path / "gpus"
    summary = ray_job(
        folder, tmp_path / "s.roi", {"gpus": gpus, "sleep": 0.02}, device="auto", models_per_gpu=models_per_gpu
    )
    assert summary.device == "cuda" and contents(tmp_path / "s.roi") == held
    assert sorted(gpus.read_text().split()) == expected


def test_paths_start_where_the_job_was_started(ray_job, photos, tmp_path, monkeypatch):
    photos(3)
    monkeypatch.chdir(tmp_path)
    assert ray_job("photos", "s.roi").records == 3


def test_changed_images_are_done_again(ray_job, photos, picture, tmp_path):
    folder = photos(UNIT + 2)
    ray_job(folder, tmp_path / "s.roi")
    ray_job.calls.unlink()
    picture(folder / "0001.png", 100)
    summary = ray_job(folder, tmp_path / "s.roi", refresh_changed=True)
    assert (summary.refreshed, summary.records, ray_job.seen()) == (1, UNIT + 2, ["0001.png"])


@pytest.mark.slow
def test_images_that_are_too_large_for_a_unit_make_smaller_ones(ray_job, tmp_path):
    """400 MB of pixels."""
    for index in range(9):
        Image.new("RGB", (5000, 3000), (index, 0, 0)).save(tmp_path / f"{index}.bmp")
    summary = ray_job(tmp_path, tmp_path / "s.roi")
    assert (summary.records, sorted(ray_job.seen())) == (9, [f"{index}.bmp" for index in range(9)])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains(ray_job, whole, tmp_path, contents, number):
    """What the models end in a moment is committed, the rest is left for the next run."""
    folder, expected = whole

    def stop():
        while len(ray_job.seen()) < UNIT + 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    summary = ray_job(folder, tmp_path / "s.roi", {"sleep": 0.1})
    thread.join()
    assert summary.exit_code == 130 and 0 < summary.records < COUNT
    store = open_store(str(tmp_path / "s.roi"))
    assert len(store) == summary.records and all(shard.sealed for shard in store.manifest.shards)
    ray_job.calls.unlink()
    assert ray_job(folder, tmp_path / "s.roi").records == COUNT
    assert len(ray_job.seen()) == COUNT - summary.records
    assert contents(tmp_path / "s.roi") == expected
