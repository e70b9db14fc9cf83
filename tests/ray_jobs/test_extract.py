import os
import signal
import threading

import numpy as np
import pytest
from PIL import Image

from cache import InputNotFound, StoreMismatch, UsageError, WeightsError, open_store
from ray_jobs.extract import run_extract
from ray_jobs.local import LocalEngine
from ray_jobs.options import ExtractOptions
from ray_jobs.sources.folder import FolderSource
from ray_jobs.work import UNIT


@pytest.mark.parametrize("count", [1, UNIT - 1, UNIT, UNIT + 1, 5 * UNIT + 3])
def test_as_many_come_out_as_went_in(job, photos, tmp_path, count):
    summary = job(photos(count), tmp_path / "s.roi")
    assert (summary.listed, summary.records, summary.new, summary.failed) == (count, count, count, 0)
    assert (summary.regions, summary.exit_code) == (4 * count, 0)
    assert len(open_store(str(tmp_path / "s.roi"))) == count
    assert job.keys == [f"{i:04d}.png" for i in range(count)]


def test_a_bad_image_shifts_no_other(job, picture, tmp_path, contents):
    """Every key has its own image's features, with bad ones anywhere among them."""
    folder = tmp_path / "photos"
    for index in range(40):
        if index % 3 == 1:
            (folder / f"{index:02d}.png").write_bytes(b"<html>not found</html>")
        else:
            picture(folder / f"{index:02d}.png", index)
    summary = job(folder, tmp_path / "s.roi", max_failures="50%")
    assert summary.failures == {"not_an_image": 13} and summary.records == 27
    store = open_store(str(tmp_path / "s.roi"))
    for key in store.keys():
        pixels = np.asarray(Image.open(folder / key), np.float16)
        assert np.array_equal(store[key].features[:, :3], pixels[[0, 0, -1, -1], [0, -1, 0, -1]])
    assert {failure.source for failure in store.failures()} == {str(folder / f"{i:02d}.png") for i in range(1, 40, 3)}


def test_the_engine_prepares_while_a_listing_is_slow_to_begin(job, photos, tmp_path, monkeypatch):
    prepared, items = threading.Event(), FolderSource.items

    def slow(source):
        assert prepared.wait(60)
        yield from items(source)

    monkeypatch.setattr(LocalEngine, "prepare", lambda engine: prepared.set())
    monkeypatch.setattr(FolderSource, "items", slow)
    assert job(photos(3), tmp_path / "s.roi").records == 3


def test_a_finished_job_is_left_alone(job, photos, tmp_path):
    folder = photos(20)
    (folder / "bad.png").write_bytes(b"")
    first = job(folder, tmp_path / "s.roi")
    before = sorted((f.name, f.stat().st_mtime_ns) for f in (tmp_path / "s.roi").iterdir())
    job.models.clear()
    again = job(folder, tmp_path / "s.roi")
    assert not job.models, "the model was loaded for nothing"
    assert (again.new, again.already, again.device) == (0, 20, None)
    for name in ("listed", "records", "failures", "examples", "exit_code", "verdict"):
        assert getattr(again, name) == getattr(first, name)
    assert before == sorted((f.name, f.stat().st_mtime_ns) for f in (tmp_path / "s.roi").iterdir())


def test_only_what_is_missing_is_done(job, photos, picture, tmp_path, contents):
    folder = photos(20)
    job(folder, tmp_path / "s.roi", limit=7)
    assert job.keys == [f"{i:04d}.png" for i in range(7)]
    picture(folder / "0003a.png", 99)
    summary = job(folder, tmp_path / "s.roi")
    assert job.keys == ["0003a.png", *(f"{i:04d}.png" for i in range(7, 20))]
    assert (summary.listed, summary.records, summary.new, summary.already) == (21, 21, 14, 7)
    job(folder, tmp_path / "whole.roi")
    assert contents(tmp_path / "s.roi") == contents(tmp_path / "whole.roi")


def test_limit_is_the_first_of_the_listing(job, photos, tmp_path):
    folder = photos(10)
    assert job(folder, tmp_path / "s.roi", limit=4).listed == 4
    again = job(folder, tmp_path / "s.roi", limit=4)
    assert (again.listed, again.already, again.new) == (4, 4, 0)
    assert job(folder, tmp_path / "s.roi", limit=100).listed == 10


def test_failures_are_tried_again_only_when_asked(job, photos, picture, tmp_path):
    folder = photos(3)
    (folder / "0001.png").write_bytes(b"")
    (folder / "0002.png").write_bytes(b"")
    assert job(folder, tmp_path / "s.roi").failures == {"empty": 2}
    picture(folder / "0001.png", 1)
    again = job(folder, tmp_path / "s.roi")
    assert (again.failures, again.retried, again.exit_code, job.keys) == ({"empty": 2}, 0, 65, [])
    retried = job(folder, tmp_path / "s.roi", retry_failed=True, max_failures="1")
    assert (retried.failures, retried.retried, retried.records) == ({"empty": 1}, 2, 2)
    assert (retried.exit_code, job.keys) == (0, ["0001.png"])
    assert [failure.key for failure in open_store(str(tmp_path / "s.roi")).failures()] == ["0002.png"]


def test_changed_images_are_done_again_when_asked(job, photos, picture, tmp_path, contents):
    folder, store = photos(6), tmp_path / "s.roi"
    listing = tmp_path / "photos" / "list.txt"
    listing.write_text("".join(f"{i:04d}.png\n" for i in range(6)))
    job(listing, store)
    before = contents(store)
    picture(folder / "0001.png", 100)
    (folder / "0002.png").write_bytes(b"no picture any more")
    (folder / "0003.png").unlink()
    os.utime(folder / "0004.png")
    assert job(listing, store).new == 0
    assert contents(store) == before

    summary = job(listing, store, refresh_changed=True, max_failures="1")
    after = contents(store)
    assert job.keys == ["0001.png"]
    assert (summary.refreshed, summary.records, summary.failures) == (2, 5, {"not_an_image": 1})
    assert after["0001.png"] != before["0001.png"] and after["0002.png"] == "not_an_image"
    assert all(after[key] == before[key] for key in ("0000.png", "0003.png", "0004.png", "0005.png"))

    unchanged = job(listing, store, refresh_changed=True, max_failures="1")
    assert (unchanged.refreshed, unchanged.records, job.keys) == (0, 5, [])


def test_a_corrupt_record_is_made_anew_by_refreshing(job, photos, tmp_path, contents):
    folder, path = photos(4), tmp_path / "s.roi"
    job(folder, path)
    before, store = contents(path), open_store(str(path))
    shard, offset, _ = store.location("0002.png")
    file = path / f"{shard}.lmdb"
    damaged = bytearray(file.read_bytes())
    damaged[offset + 1] ^= 0xFF  # in the magic bytes, so that every reading of the record finds it
    file.write_bytes(damaged)
    summary = job(folder, path, refresh_changed=True)
    assert (summary.refreshed, summary.records, job.keys) == (1, 4, ["0002.png"])
    assert contents(path) == before


@pytest.mark.parametrize(
    ("allowed", "exit_code"), [("0", 65), ("1", 65), ("2", 0), ("10%", 65), ("20%", 0), ("19.9%", 65), ("100%", 0)]
)
def test_how_many_may_fail(job, photos, tmp_path, allowed, exit_code):
    folder = photos(10)
    for name in ("0000.png", "0009.png"):
        (folder / name).write_bytes(b"")
    assert job(folder, tmp_path / "s.roi", max_failures=allowed).exit_code == exit_code


def test_an_empty_listing_is_an_error_and_makes_no_store(job, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "notes.txt").write_text("no pictures")
    summary = job(tmp_path / "photos", tmp_path / "s.roi")
    assert (summary.listed, summary.exit_code) == (0, 65) and not job.models
    assert not (tmp_path / "s.roi").exists()


def test_nothing_in_the_store_is_an_error(job, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    summary = job(tmp_path / "photos", tmp_path / "s.roi", max_failures="100%")
    assert (summary.listed, summary.records, summary.failures, summary.exit_code) == (1, 0, {"empty": 1}, 65)


def test_equal_keys_fail_in_the_run_and_name_both_files(job, picture, tmp_path):
    for place in ("a/x.png", "b/x.png", "c/x.png", "c/y.png"):
        picture(tmp_path / "photos" / place, len(place))
    summary = job(tmp_path / "photos", tmp_path / "s.roi", key="name", max_failures="2")
    assert (summary.listed, summary.records, summary.failures) == (4, 2, {"duplicate_key": 2})
    assert [example["source"] for example in summary.examples] == [str(tmp_path / "photos" / p / "x.png") for p in "bc"]
    assert all(str(tmp_path / "photos/a/x.png") in example["message"] for example in summary.examples)
    assert not list(open_store(str(tmp_path / "s.roi")).failures())
    again = job(tmp_path / "photos", tmp_path / "s.roi", key="name", max_failures="2")
    assert (again.failures, again.exit_code, job.keys) == (summary.failures, summary.exit_code, [])


def test_a_file_listed_twice_is_one_input(job, photos, tmp_path):
    folder = photos(2)
    (folder / "list.txt").write_text("0000.png\n0001.png\n./0000.png\n")
    summary = job(folder / "list.txt", tmp_path / "s.roi")
    assert (summary.listed, summary.records, summary.exit_code) == (2, 2, 0)


def test_omitted_options_take_the_values_of_the_store(job, photos, tmp_path, contents):
    folder = photos(4)
    chosen = {"precision": "bfloat16", "dtype": "float32", "orientation": "ignore", "truncated": "keep", "key": "stem"}
    job(folder, tmp_path / "s.roi", limit=2, **chosen)
    summary = job(folder, tmp_path / "s.roi")
    assert (summary.precision, summary.feature_dtype, summary.new) == ("bfloat16", "float32", 2)
    policy = job.models[-1].policy
    assert (policy.orientation, policy.truncated) == ("ignore", "keep")
    assert open_store(str(tmp_path / "s.roi"))["0003"].features.dtype == np.float32


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("precision", "float16", "precision"),
        ("dtype", "float32", "feature_dtype"),
        ("orientation", "ignore", "orientation"),
        ("truncated", "keep", "truncated"),
        ("weights", "other", "weights_sha256"),
    ],
)
def test_other_choices_do_not_fit_the_store(job, photos, tmp_path, option, value, named):
    """Also when the job is finished and no model would be loaded."""
    folder = photos(2)
    job(folder, tmp_path / "s.roi")
    if option == "weights":
        value = str(tmp_path / "other.weights")
        (tmp_path / "other.weights").write_bytes(b"others")
    with pytest.raises(StoreMismatch, match=named) as caught:
        job(folder, tmp_path / "s.roi", **{option: value})
    assert caught.value.exit_code == 78


def test_weights_of_another_model_are_refused_before_anything_is_listed(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"other.weight": np.zeros((2, 3), np.float32)}, str(tmp_path / "other.safetensors"))
    (tmp_path / "no images").mkdir()
    options = ExtractOptions(
        str(tmp_path / "no images"), str(tmp_path / "s.roi"), "demo", weights=str(tmp_path / "other.safetensors")
    )
    with pytest.raises(WeightsError, match=r"other\.safetensors does not fit this model: missing"):
        run_extract(options)
    assert not (tmp_path / "s.roi").exists()


def test_what_is_not_there_is_said_before_any_work(job, photos, tmp_path):
    with pytest.raises(InputNotFound, match="nowhere"):
        job(tmp_path / "nowhere", tmp_path / "s.roi")
    with pytest.raises(InputNotFound, match=r"gone\.weights"):
        job(photos(1), tmp_path / "s.roi", weights=str(tmp_path / "gone.weights"))
    with pytest.raises(UsageError, match="did you mean demo"):
        job(photos(1), tmp_path / "s.roi", model="dem")
    assert not (tmp_path / "s.roi").exists() and not job.models


def test_shards_threads_and_company_change_no_record(job, photos, tmp_path, contents):
    folder = photos(50)
    job(folder, tmp_path / "one.roi", threads=1)
    job(folder, tmp_path / "many.roi", threads=4, shard_size=40_000)
    assert len(open_store(str(tmp_path / "many.roi")).manifest.shards) > 2
    for index in range(0, 50, 7):
        job(folder / f"{index:04d}.png", tmp_path / "alone.roi")
    whole, alone = contents(tmp_path / "one.roi"), contents(tmp_path / "alone.roi")
    assert whole == contents(tmp_path / "many.roi")
    assert len(alone) == 8 and all(alone[key] == whole[key] for key in alone)


def test_the_store_says_how_it_was_made(job, photos, tmp_path):
    folder = photos(3)
    job(folder, tmp_path / "s.roi", threads=2)
    manifest = open_store(str(tmp_path / "s.roi")).manifest
    assert manifest.fingerprint["preset"] == "demo" and manifest.fingerprint["given_boxes"] is False
    assert len(manifest.vocabularies["classes"]) == 12
    (made,) = manifest.shards[0].provenance
    assert (made["engine"], made["device"], made["threads"], made["path"]) == ("local", "fake", 2, str(folder))
    assert made["versions"]["numpy"] == np.__version__


def test_the_store_inside_the_source_is_not_listed(job, photos, tmp_path):
    folder = photos(3)
    assert job(folder, folder / "s.roi").listed == 3
    assert job(folder, folder / "s.roi").listed == 3


def test_a_signal_in_the_main_thread_drains_and_the_handlers_come_back(job, photos, tmp_path, contents):
    """The images at the model are committed; nothing after them is begun."""
    folder = photos(5 * UNIT)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    extract = job.model.extract
    job.model.extract = lambda self, images, keys: (os.kill(os.getpid(), signal.SIGINT), extract(self, images, keys))[1]
    summary = job(folder, tmp_path / "s.roi")
    assert (summary.exit_code, summary.records, len(job.keys)) == (130, UNIT, UNIT)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert all(shard.sealed for shard in open_store(str(tmp_path / "s.roi")).manifest.shards)
    job.model.extract = extract
    assert job(folder, tmp_path / "s.roi").exit_code == 0
    assert len(job.keys) == 4 * UNIT
    job(folder, tmp_path / "whole.roi")
    assert contents(tmp_path / "s.roi") == contents(tmp_path / "whole.roi")
