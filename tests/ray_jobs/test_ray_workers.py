import numpy as np
import pytest
from PIL import Image

from cache import Failure
from extractor import DecodePolicy
from ray_jobs import ray_workers
from ray_jobs.ray_workers import decode_unit
from ray_jobs.sources import open_source
from ray_jobs.work import Task


@pytest.fixture
def tasks(photos):
    def make(count):
        return [Task(item) for item in open_source(str(photos(count))).items()]

    return make


def test_every_task_has_its_outcome_and_images_keep_their_order(tasks, tmp_path):
    unit = tasks(4)
    (tmp_path / "photos" / "0001.png").write_bytes(b"")
    digest = next(iter(decode_images(unit[2:3])[1])).source_digest
    unit[2] = Task(unit[2].item, "record", digest)
    begun, images, decoded = decode_unit(unit, DecodePolicy(), str(tmp_path))
    assert begun is None and decoded.seconds > 0
    assert decoded.outcomes[0] is True and decoded.outcomes[2] is False and decoded.outcomes[3] is True
    failure = decoded.outcomes[1]
    assert isinstance(failure, Failure) and failure.kind == "empty" and failure.source == unit[1].item.source
    for image, name in zip(images, ("0000.png", "0003.png"), strict=True):
        assert np.array_equal(image.rgb, np.asarray(Image.open(tmp_path / "photos" / name)))


def decode_images(unit):
    return list(decode_unit(unit, DecodePolicy(), "/"))


def test_a_unit_ends_when_its_images_take_too_much_memory(tasks, monkeypatch):
    monkeypatch.setattr(ray_workers, "MOST_BYTES", 3 * 24 * 16 * 3 - 1)
    _, images, decoded = decode_images(tasks(5))
    assert (len(images), decoded.outcomes) == (3, [True] * 3)


def test_relative_paths_start_at_the_folder(photos, tmp_path, monkeypatch):
    photos(1)
    monkeypatch.chdir(tmp_path)
    unit = [Task(item) for item in open_source("photos").items()]
    monkeypatch.chdir("/")
    _, images, _ = decode_unit(unit, DecodePolicy(), str(tmp_path))
    assert len(images) == 1
    assert decode_images(unit)[2].outcomes[0].kind == "missing"
