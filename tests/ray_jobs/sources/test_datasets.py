"""What is particular to the published datasets: their odd layouts, splits and keys, and the real annotation files."""

import base64
import gzip
import json
import os
import unicodedata
from pathlib import Path

import pytest

from cache import DataError, InputNotFound, UsageError
from extractor.images import DecodePolicy, ImageError
from ray_jobs.sources import open_source, source_class
from ray_jobs.sources.annotations import expected_keys, read_rows

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the annotation files are not here (ROIVAULT_SHARED)")


@pytest.fixture
def lay(tmp_path, picture_bytes):
    """Make pictures at paths, and say where."""

    def make(*paths):
        for index, path in enumerate(paths):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(picture_bytes(index))
        return tmp_path

    return make


def keys(spec):
    return [item.key for item in open_source(str(spec)).items()]


def kinds(spec):
    """Key -> kind of the failure, None for a picture."""
    found = {}
    for item in open_source(str(spec)).items():
        try:
            found[item.key] = item.locator.read(item.key, DecodePolicy()) and None
        except ImageError as error:
            found[item.key] = error.kind
    return found


def test_splits(lay):
    folder = lay(
        "val2014/COCO_val2014_000000000042.jpg",
        "train2017/000000000009.jpg",
        "images/000000000025.jpg",
        "val2017/nested/000000000001.jpg",
        "val2017/readme.jpg",
        "odd/COCO_val1999_000000000042.jpg",
    )
    assert keys(f"coco:{folder}?split=val2014") == ["COCO_val2014_000000000042"]
    assert keys(f"coco:{folder}?split=train2017") == ["000000000009"]
    assert keys(f"coco:{folder}?split=2017") == ["000000000025", "000000000001"]
    assert len(keys(f"coco:{folder}")) == 4
    assert keys(f"coco:{folder}/val2014") == ["COCO_val2014_000000000042"]
    with pytest.raises(UsageError, match="no split 'dev'; it has train2014"):
        open_source(f"coco:{folder}?split=dev")
    with pytest.raises(UsageError, match="makes keys by its own rule"):
        open_source(f"coco:{folder}", "stem")


def test_an_archive_beside_its_folder_is_the_same(lay, write_container, picture_bytes):
    folder = lay("val2017/000000000139.jpg", "VG_100K/1.jpg", "VG_100K/2.jpg")
    write_container(folder / "val2017.zip", [("val2017/000000000139.jpg", picture_bytes(0))])
    write_container(folder / "train2017.zip", [("train2017/000000000009.jpg", picture_bytes(1))])
    write_container(folder / "images.zip", [("VG_100K/1.jpg", picture_bytes(2))])
    write_container(folder / "images2.zip", [("VG_100K_2/3.jpg", picture_bytes(3))])
    assert keys(f"coco:{folder}") == ["000000000009", "000000000139"]
    assert keys(f"coco:{folder}/val2017.zip") == ["000000000139"]
    assert keys(f"visual_genome:{folder}") == ["3", "1", "2"]


def test_splits_of_visual_genome(lay):
    folder = lay("vg/VG_100K/1.jpg", "vg/VG_100K_2/2.jpg", "gqa/images/1.jpg", "gqa/images/n3.jpg", "gqa/images/x.jpg")
    assert keys(f"visual_genome:{folder}?split=vg") == ["1", "2"]
    assert keys(f"visual_genome:{folder}/vg/VG_100K_2?split=vg") == ["2"]
    assert keys(f"visual_genome:{folder}?split=gqa") == ["1", "n3"]


def test_marvl_takes_its_language_from_folders_and_names_as_the_disk_spells_them(lay):
    composed, decomposed = "80-Türk kahvesi", unicodedata.normalize("NFD", "80-Türk kahvesi")
    folder = lay(
        f"marvl-images/tr/images/{composed}/80-1.jpg",
        f"marvl-images/tr/extra/{decomposed}/80-n-1.jpg",
        "marvl-images/sw/images/39-Panci/80-1.jpg",
    )
    assert keys(f"marvl:{folder}") == ["sw/80-1", "tr/80-n-1", "tr/80-1"]
    assert keys(f"marvl:{folder}?split=tr") == ["tr/80-n-1", "tr/80-1"]
    assert keys(f"marvl:{folder}/marvl-images/sw/images/39-Panci") == ["sw/80-1"]
    assert set(kinds(f"marvl:{folder}").values()) == {None}
    lay("elsewhere/80-1.jpg")
    assert kinds(f"marvl:{folder}/elsewhere") == {"80-1.jpg": "key_invalid"}


def test_wit_pictures_are_known_by_content(lay):
    folder = lay("images/wit-test_1.svg", "images/wit-test_2", "images/wit_3.tif", "images/other.jpg")
    (folder / "images/wit-test_4.jpg").write_bytes(b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>')
    pictures = dict.fromkeys(["wit-test_1", "wit-test_2", "wit_3"])
    assert kinds(f"wit:{folder}") == pictures | {"wit-test_4": "unsupported"}
    assert keys(f"wit:{folder}?split=train") == ["wit_3"]


def test_rows_of_wit_are_known_by_number_or_address(tmp_path, picture_bytes):
    images = [base64.b64encode(picture_bytes(n)).decode() for n in range(3)]
    lines = [f"https://x.org/{n}.svg\t{image}" for n, image in enumerate(images)]
    (tmp_path / "wit_test.tsv").write_text("base64_image\n" + "\n".join(images))
    assert keys(f"wit:{tmp_path}/wit_test.tsv") == ["wit-test_0", "wit-test_1", "wit-test_2"]
    (tmp_path / "other.tsv").write_text("base64_image\n" + "\n".join(images))
    assert set(kinds(f"wit:{tmp_path}/other.tsv").values()) == {"key_invalid"}
    assert keys(f"wit:{tmp_path}/other.tsv?split=test") == ["wit-test_0", "wit-test_1", "wit-test_2"]
    (tmp_path / "part-0.tsv.gz").write_bytes(gzip.compress("\n".join(["image_url\tb64_bytes", *lines]).encode()))
    spec = f"wit:{tmp_path}/part-0.tsv.gz"
    assert kinds(spec) == {f"https://x.org/{n}.svg": "key_invalid" for n in range(3)}
    (tmp_path / "a").mkdir()
    rows = [{"image_url": f"https://x.org/{n}.svg", "wit_ix": name} for n, name in ((0, "wit_7"), (2, "wit_9"))]
    (tmp_path / "a/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    known = kinds(f"{spec}?annotations={tmp_path}/a")
    assert known == {"wit_7": None, "https://x.org/1.svg": "key_invalid", "wit_9": None}
    with pytest.raises(InputNotFound, match="no annotations"):
        open_source(f"{spec}?annotations={tmp_path}/gone")


def test_a_damaged_archive_of_a_dataset_is_named(lay, write_container, picture_bytes):
    folder = lay("val2014/COCO_val2014_000000000042.jpg")
    (folder / "train2014.zip").write_bytes(b"PK\3\4 and then nothing")
    items = list(open_source(f"coco:{folder}?split=val2014").items())
    assert [(item.key, item.hides) for item in items] == [("train2014.zip", True), ("COCO_val2014_000000000042", False)]


def test_annotation_files_of_every_packing(tmp_path, lay):
    row, folder = '{"img_path": "7.jpg"}', lay("pictures/12345.jpg")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.jsonl").write_text('{"img_path": "12345.jpg"}\n\n{"caption": "no picture"}\n')
    (tmp_path / "a/2.jsonl.gz").write_bytes(gzip.compress(b'{"Flikr30kID": "22222"}\n'))
    (tmp_path / "a/3.json").write_text('{"images": [{"img_path": "33333.jpg"}], "info": {}}')
    (tmp_path / "a/4.txt").write_text("44444.jpg\n44445.jpg#3\nCOCO_val2014_000000000042.jpg\n")
    (tmp_path / "a/5.json").write_text('{"x": {"img_path": "55555.jpg"}, "y": {"imageId": "66666"}}')
    (tmp_path / "a/6.json").write_text("12")
    (tmp_path / "a/notes.md").write_text(row)
    expected = dict(expected_keys(open_source(f"flickr30k:{folder}/pictures"), f"{tmp_path}/a"))
    assert expected == {
        "1.jsonl": {"12345"},
        "2.jsonl.gz": {"22222"},
        "3.json": {"33333"},
        "4.txt": {"44444", "44445"},
        "5.json": {"55555"},
    }
    (tmp_path / "a/7.jsonl").write_text(f"{row}\n{{broken\n")
    with pytest.raises(DataError, match="7.jsonl cannot be read: line 2"):
        list(read_rows(f"{tmp_path}/a"))
    with pytest.raises(InputNotFound, match="no annotation files"):
        list(read_rows(f"{folder}/pictures"))


# source, annotation files, their number, and pictures that they name of that source
REAL = [
    ("flickr30k", "iglue/datasets/XVNLI/annotations", 357 + 48),
    ("flickr30k", "iglue/datasets/flickr30k/annotations", 2014),
    ("flickr30k", "iglue/datasets/xFlickrCO/annotations/en", 1000),
    ("flickr30k", "multi30k/data/task1/image_splits", 29000 + 1014 + 1000),  # the others are of later years
    ("coco", "iglue/datasets/xFlickrCO/annotations/en", 1000),
    ("coco", "vsr/data/splits/zeroshot", None),
    ("visual_genome", "iglue/datasets/gqa/annotations/testdev.json.gz", 398),
    ("nlvr2", "iglue/datasets/nlvr2/annotations/dev.jsonl.gz", 8102),
    ("nlvr2", "iglue/datasets/nlvr2/annotations/test.jsonl.gz", 8082),
    ("marvl", "iglue/datasets/marvl/zero_shot", 4913),
    ("marvl", "iglue/datasets/marvl/few_shot/annotations", 85 + 87 + 90),
    ("wit", "iglue/datasets/wit/annotations/val_en.jsonl.gz", 4632),
    ("wit", "iglue/datasets/wit/annotations", 4632 + 6195),
    ("open_images", "xm3600/image_ids.txt", 3600),
]


@needs_data
@pytest.mark.parametrize(("name", "files", "count"), REAL)
def test_pictures_that_the_real_annotations_name(name, files, count, tmp_path):
    expected = dict(expected_keys(open_source(f"{name}:{tmp_path}"), str(DATA / files)))
    named = set().union(*expected.values())
    assert named and (count is None or len(named) == count)
    assert all(source_class(name).keys.fullmatch(key) for key in named)


@needs_data
def test_published_counts_are_those_of_the_annotations(tmp_path):
    files = DATA / "iglue/datasets/marvl/zero_shot/annotations"
    marvl = dict(expected_keys(open_source(f"marvl:{tmp_path}"), str(files)))
    counts = {name.split("-")[1][:2]: len(keys) for name, keys in marvl.items()}
    assert counts == source_class("marvl").counts
    assert source_class("nlvr2").counts["dev"] == 8102 and source_class("open_images").counts["xm3600"] == 3600


@needs_data
def test_pictures_of_xm3600_are_upright_as_they_are_published():
    """Which is why the source leaves the column `Rotation` alone."""
    import csv

    sizes = {name: (int(w), int(h)) for name, w, h in csv.reader((DATA / "xm3600/image_shapes.csv").open())}
    with gzip.open(DATA / "xm3600/image_attributions.csv.gz", "rt", encoding="utf-8", newline="") as file:
        turned = [row["ImageID"] for row in csv.DictReader(file) if row["Rotation"] in ("90", "270")]
    upright = [name for name in turned if sizes[name][1] >= sizes[name][0]]
    assert len(turned) == 173 and len(upright) > 0.97 * len(turned)
