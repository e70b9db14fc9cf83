"""Pictures of a folder, by the keys of a task."""

import numpy as np
import pytest
from PIL import Image

from cache import DataError, InputNotFound, MissingKeys
from consumers.models import images
from consumers.models.images import FolderOfImages


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train2017").mkdir()
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "train2017" / "000000000001.png")
    Image.fromarray(red[..., 0]).save(tmp_path / "grey.png")
    turned = Image.fromarray(red)
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    turned.save(tmp_path / "turned.jpg", exif=exif)
    return tmp_path


def test_pictures_are_found_by_path_name_and_stem(folder):
    pictures = FolderOfImages(folder)
    asked = [("1", "000000000001"), ("train2017/000000000001.png",), ("grey.png", "grey")]
    assert pictures.resolve(asked) == (["000000000001", "train2017/000000000001.png", "grey.png"], {0: 2, 1: 1})
    with pytest.raises(MissingKeys, match="'2', '3'"):
        pictures.resolve([("grey",), ("2", "02"), ("3",)])


def test_pictures_are_red_green_and_blue_and_upright(folder):
    red, grey, turned = FolderOfImages(folder).get_many(["000000000001", "grey", "turned"])
    assert red.shape == (4, 6, 3) and red[0, 0].tolist() == [255, 0, 0] and red.dtype == np.uint8
    assert grey.shape == (4, 6, 3) and turned.shape == (6, 4, 3)


def test_grey_of_sixteen_bits_keeps_its_shades(tmp_path):
    shades = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    Image.fromarray(shades).save(tmp_path / "deep.png")
    (deep,) = FolderOfImages(tmp_path).get_many(["deep"])
    assert deep[0].tolist() == [[shade] * 3 for shade in (0, 0, 1, 1, 128, 255)]


def test_pictures_that_cannot_be_read(folder, monkeypatch):
    (folder / "text.jpg").write_text("no picture")
    whole = (folder / "turned.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    pictures = FolderOfImages(folder)
    for name in ("text", "cut"):
        with pytest.raises(DataError, match=f"{name}.jpg cannot be decoded"):
            pictures.get_many([name])
    monkeypatch.setattr(images, "MOST_PIXELS", 20)
    with pytest.raises(DataError, match="has 6 x 4 pixels, more than can be read"):
        pictures.get_many(["grey"])


def test_a_folder_without_pictures(tmp_path):
    with pytest.raises(InputNotFound, match="has no pictures"):
        FolderOfImages(tmp_path)


def test_a_name_that_two_pictures_have(tmp_path):
    for name in ("a/1.png", "b/1.png", "2.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    pictures = FolderOfImages(tmp_path)
    assert pictures.resolve([("b/1",), ("2.png",), ("a/1.png",)])[0] == ["b/1", "2.png", "a/1.png"]
    with pytest.raises(DataError, match=r"picture '1.png' may be .*a/1.png or .*b/1.png"):
        pictures.resolve([("1.png",)])
