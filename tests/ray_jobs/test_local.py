import threading
import time

import numpy as np
import pytest
from PIL import Image

from cache import open_store
from extractor.images import DecodedImage
from ray_jobs import local
from ray_jobs.work import UNIT


@pytest.fixture
def budget(monkeypatch):
    """Gives the engine a budget of n bytes for decoded images; returns it once the engine has made it."""
    made = []

    def limit(nbytes):
        real = local.ByteBudget
        monkeypatch.setattr(local, "ByteBudget", lambda: made.append(real(nbytes)) or made[-1])
        return made

    return limit


def test_decoded_images_never_exceed_the_budget(job, tmp_path, budget, monkeypatch):
    """A unit that does not fit is cut; an image that does not fit alone goes alone; nothing waits for ever."""
    (tmp_path / "photos").mkdir()
    sizes = [(40, 30), (900, 700), (40, 30), (300, 200), (300, 200), (2000, 1500), (2000, 1500), (40, 30)] * 4
    for index, size in enumerate(sizes):
        Image.new("RGB", size, (index, 0, 0)).save(tmp_path / "photos" / f"{index:02d}.png")
    budget(2_000_000)
    lock, held, peak, units = threading.Lock(), set(), [0], []
    decode, extract = job.model.decode, job.model.extract

    def counting_decode(self, source, key):
        image = decode(self, source, key)
        with lock:
            held.add((key, image.rgb.nbytes))
            peak[0] = max(peak[0], sum(nbytes for _, nbytes in held))
        return image

    def counting_extract(self, images, keys):
        units.append(len(images))
        results = extract(self, images, keys)
        with lock:
            held.difference_update({(key, image.rgb.nbytes) for key, image in zip(keys, images, strict=True)})
        return results

    monkeypatch.setattr(job.model, "decode", counting_decode)
    monkeypatch.setattr(job.model, "extract", counting_extract)
    summary = job(tmp_path / "photos", tmp_path / "s.roi", threads=4)
    assert summary.records == len(sizes) == sum(units)
    assert max(units) < UNIT and peak[0] <= 2000 * 1500 * 3
    assert job.keys == [f"{index:02d}.png" for index in range(len(sizes))]


def test_the_budget_is_given_back(job, photos, tmp_path, budget):
    (made,) = [budget(10**9)]
    folder = photos(UNIT + 3)
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    job(folder, tmp_path / "s.roi")
    assert made[0]._used == 0


def test_few_images_are_decoded_ahead(job, photos, tmp_path, monkeypatch):
    """However slow the model is."""
    decoded, at_the_model = [], []
    decode, extract = job.model.decode, job.model.extract
    monkeypatch.setattr(job.model, "decode", lambda *args: decoded.append(1) or decode(*args))

    def slow(self, images, keys):
        time.sleep(0.1)
        at_the_model.append((len(decoded), len(keys)))
        return extract(self, images, keys)

    monkeypatch.setattr(job.model, "extract", slow)
    job(photos(8 * UNIT), tmp_path / "s.roi", threads=4)
    first_decoded, first_unit = at_the_model[0]
    assert first_decoded <= first_unit + local.UNITS_AHEAD * UNIT < 8 * UNIT
    assert sum(count for _, count in at_the_model) == 8 * UNIT


def test_memory_that_runs_out_in_decoding_is_a_failure_of_that_image(job, photos, tmp_path, monkeypatch):
    decode = job.model.decode

    def short(self, source, key):
        if key == "0002.png":
            raise MemoryError
        return decode(self, source, key)

    monkeypatch.setattr(job.model, "decode", short)
    summary = job(photos(5), tmp_path / "s.roi")
    assert (summary.records, summary.failures) == (4, {"out_of_memory": 1})
    assert "--retry-failed" in summary.examples[0]["message"]


def test_what_a_codec_raises_is_a_failure_of_that_image(job, photos, tmp_path, monkeypatch):
    decode = job.model.decode
    monkeypatch.setattr(job.model, "decode", lambda m, s, key: 1 / 0 if key == "0001.png" else decode(m, s, key))
    summary = job(photos(3), tmp_path / "s.roi")
    assert (summary.records, summary.failures) == (2, {"decode_error": 1})
    assert "ZeroDivisionError" in summary.examples[0]["message"]


def test_failures_of_the_model_name_the_file(job, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "0001.png")
    folder = photos(3)
    summary = job(folder, tmp_path / "s.roi")
    assert (summary.records, summary.failures) == (2, {"out_of_memory": 1})
    (failure,) = open_store(str(tmp_path / "s.roi")).failures()
    assert (failure.key, failure.source) == ("0001.png", str(folder / "0001.png"))


def test_a_bug_of_the_model_ends_the_job_names_the_image_and_keeps_the_rest(job, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_RAISE", f"{UNIT + 1:04d}.png")
    folder = photos(3 * UNIT)
    with pytest.raises(RuntimeError, match=f"a bug of the model.*{UNIT + 1:04d}.png"):
        job(folder, tmp_path / "s.roi")
    assert len(open_store(str(tmp_path / "s.roi"))) == UNIT
    monkeypatch.delenv("FAKE_RAISE")
    assert job(folder, tmp_path / "s.roi").new == 2 * UNIT


def test_values_that_cannot_be_stored_are_a_failure_of_that_image(job, photos, tmp_path, monkeypatch):
    extract = job.model.extract

    def overflowing(self, images, keys):
        results = extract(self, images, keys)
        return [r.replace(features=r.features * 1e6) if r.key == "0001.png" else r for r in results]

    monkeypatch.setattr(job.model, "extract", overflowing)
    summary = job(photos(3), tmp_path / "s.roi")
    assert (summary.records, summary.failures, summary.regions) == (2, {"value_range": 1}, 8)


def test_an_unchanged_file_is_not_decoded_again(job, photos, tmp_path, monkeypatch):
    folder = photos(3)
    job(folder, tmp_path / "s.roi")
    monkeypatch.setattr(job.model, "decode", lambda *args: pytest.fail("decoded"))
    assert job(folder, tmp_path / "s.roi", refresh_changed=True).already == 3


def test_decoded_images_are_what_the_model_gets(job, photos, tmp_path, monkeypatch):
    seen = []
    extract = job.model.extract
    monkeypatch.setattr(job.model, "extract", lambda m, images, keys: seen.extend(images) or extract(m, images, keys))
    folder = photos(2)
    job(folder, tmp_path / "s.roi")
    assert all(isinstance(image, DecodedImage) and len(image.source_digest) == 16 for image in seen)
    assert np.array_equal(seen[1].rgb, np.asarray(Image.open(folder / "0001.png")))


def test_nothing_is_decoded_after_the_run_has_ended(job, photos, tmp_path, budget, monkeypatch):
    """Images that wait for room must not be let in all at once when a bug or an interruption ends the run."""
    budget(1)
    decoded, decode = [], job.model.decode

    def counting_decode(self, source, key):
        decoded.append(key)
        return decode(self, source, key)

    def stop(self, images, keys):
        time.sleep(0.3)  # the other threads are all waiting for room now
        raise ZeroDivisionError

    monkeypatch.setattr(job.model, "decode", counting_decode)
    monkeypatch.setattr(job.model, "extract", stop)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        job(photos(3 * UNIT), tmp_path / "s.roi", threads=8)
    for thread in threading.enumerate():
        if thread.name.startswith("decode"):
            thread.join()
    assert len(decoded) == 1
