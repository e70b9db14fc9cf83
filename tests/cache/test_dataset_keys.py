"""Rules on rows that are written here, and on every row of the real annotation files where those are at hand."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache import DataError, UsageError
from cache.dataset_keys import DATASETS, candidates, coco_image_id, image_key

DATA = Path(os.environ.get("ROIVAULT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the annotation files are not here (ROIVAULT_SHARED)")


@pytest.mark.parametrize(
    ("dataset", "path", "key"),
    [
        ("coco", "val2014/COCO_val2014_000000520430.jpg", "COCO_val2014_000000520430"),
        ("coco", "train2017/000000050403.jpg", "000000050403"),
        ("coco", "COCO_train2014_000000117071.jpg#367178", "COCO_train2014_000000117071"),
        ("flickr30k", "flickr30k_images/flickr30k_images/1007129816.jpg", "1007129816"),
        ("xflickrco", "test/1007129816.jpg", "1007129816"),
        ("xflickrco", "test/COCO_val2014_000000520430.jpg", "COCO_val2014_000000520430"),
        ("visual_genome", "VG_100K_2/2370799.jpg", "2370799"),
        ("visual_genome", "images/n161313.jpg", "n161313"),
        ("nlvr2", "images/train/39/train-10171-0-img1.png", "train-10171-0-img1"),
        ("nlvr2", "dev/dev-850-0-img0.png", "dev-850-0-img0"),
        ("marvl", "marvl-images/sw/images/39-Panci/39-11.jpg", "sw/39-11"),
        ("marvl", "id/all/39-n-5.jpg", "id/39-n-5"),
        ("wit", "wit-test_0.jpg", "wit-test_0"),
        ("open_images", "d89a4889331ce042.jpg", "d89a4889331ce042"),
    ],
)
def test_key_of_a_picture(dataset, path, key):
    assert image_key(dataset, path) == key


def test_a_path_that_does_not_tell_the_key():
    with pytest.raises(DataError, match="39-11.jpg.*language"):
        image_key("marvl", "images/39-Panci/39-11.jpg")
    with pytest.raises(UsageError, match="'imagenet'.*flickr30k"):
        image_key("imagenet", "x.jpg")


@pytest.mark.parametrize(
    ("record", "keys", "also"),
    [
        ({"Flikr30kID": "759822302"}, ["759822302"], ["759822302.jpg"]),
        ({"Flickr30K_ID": "759822302.jpg"}, ["759822302"], ["759822302.jpg"]),
        ({"img_path": "1007129816.jpg", "id": "1007129816"}, ["1007129816"], ["1007129816.jpg"]),
        (
            {"img_path": "COCO_val2014_000000520430.jpg", "id": 520430},
            ["COCO_val2014_000000520430"],
            ["COCO_val2014_000000520430.jpg", "520430", "val2014/COCO_val2014_000000520430.jpg"],
        ),
        (
            {"image": "000000050403.jpg", "image_link": "http://images.cocodataset.org/train2017/000000050403.jpg"},
            ["000000050403"],
            ["000000050403.jpg", "train2017/000000050403.jpg", "50403", "COCO_val2014_000000050403"],
        ),
        ({"imageId": "2370799"}, ["2370799"], ["2370799.jpg"]),
        ({"img_id": "n161313"}, ["n161313"], ["n161313.jpg"]),
        ({"image_id": "2370799"}, ["2370799"], []),
        ({"image_id": "d89a4889331ce042"}, ["d89a4889331ce042"], ["d89a4889331ce042.jpg"]),
        ({"image/key": "d89a4889331ce042"}, ["d89a4889331ce042"], []),
        ({"identifier": "dev-850-0-0"}, ["dev-850-0-img0", "dev-850-0-img1"], ["dev/dev-850-0-img0.png"]),
        (
            {"identifier": "train-10171-0-0", "directory": 39},
            ["train-10171-0-img0", "train-10171-0-img1"],
            ["images/train/39/train-10171-0-img0.png"],
        ),
        (
            {"language": "sw", "concept": "39-Panci", "left_img": "39-11.jpg", "right_img": "39-0.jpg"},
            ["sw/39-11", "sw/39-0"],
            ["39-11", "sw/images/39-Panci/39-11.jpg"],
        ),
        (
            {"language": "tr", "left_img": "80-T\u00fck/80-n-3.jpg", "right_img": "80-Tu\u0308k/80-4.jpg"},
            ["tr/80-n-3", "tr/80-4"],
            ["tr/images/80-Tu\u0308k/80-n-3.jpg", "tr/images/80-T\u00fck/80-n-3.jpg", "80-n-3"],
        ),
        ({"wit_ix": "wit-test_0", "image_idx": 5}, ["wit-test_0"], []),
    ],
)
def test_candidates(record, keys, also):
    forms = candidates(record)
    assert [f[0] for f in forms] == keys
    assert set(also) <= set(forms[0])
    assert all(len(set(f)) == len(f) for f in forms)


def test_a_row_without_a_picture():
    with pytest.raises(DataError, match="caption.*identifier"):
        candidates({"caption": "a dog"})


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"language": "sw", "left_img": "39-0.jpg"}, "39-0.jpg.*no 'right_img'"),
        ({"left_img": "39-0.jpg", "right_img": "39-1.jpg"}, "no 'language'"),
        ({"image": 50403}, "image 50403"),
        ({"identifier": "dev"}, "'dev'"),
    ],
)
def test_a_row_that_does_not_tell_its_pictures(record, why):
    with pytest.raises(DataError, match=why):
        candidates(record)


def test_number_of_a_coco_image():
    assert coco_image_id("COCO_val2014_000000520430") == coco_image_id("520430.jpg") == 520430
    assert coco_image_id("000000050403") == 50403
    assert coco_image_id("n161313") is None and coco_image_id("sw/a-1") is None


def _rows(pattern: str) -> Iterator[dict]:
    """The rows of JSON-lines, JSON lists and JSON objects of rows, gzipped or not."""
    files = sorted(DATA.glob(pattern))
    assert files, pattern
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else open(file, encoding="utf-8") as text:
            if ".jsonl" in file.name:
                yield from map(json.loads, text)
            else:
                content = json.load(text)
                yield from content.values() if isinstance(content, dict) else content


def _marvl_paths(row: dict) -> list[str]:
    concept = row["concept"] + "/"
    images = (row["left_img"], row["right_img"])
    return [f"marvl-images/{row['language']}/images/{'' if '/' in i else concept}{i}" for i in images]


# dataset, files of annotations, where a row's pictures lie in the published archives, number of different pictures
REAL = [
    ("flickr30k", "iglue/datasets/XVNLI/annotations/en/test.jsonl*", lambda r: [f"{r['Flikr30kID']}.jpg"], 357),
    ("flickr30k", "iglue/datasets/flickr30k/annotations/*_ann.jsonl*", lambda r: [r["img_path"]], 2014),
    ("xflickrco", "iglue/datasets/xFlickrCO/annotations/[de][en]/test.jsonl*", lambda r: [r["img_path"]], 2000),
    ("visual_genome", "iglue/datasets/gqa/annotations/testdev.json.gz", lambda r: [f"images/{r['img_id']}.jpg"], 398),
    ("visual_genome", "iglue/datasets/xGQA/annotations/few_shot/de/*.json*", lambda r: [f"{r['imageId']}.jpg"], 98),
    (
        "nlvr2",
        "iglue/datasets/nlvr2/annotations/dev.jsonl.gz",
        lambda r: [f"dev/{r['identifier'][:-2]}-img{i}.png" for i in (0, 1)],
        8102,
    ),
    ("marvl", "iglue/datasets/marvl/zero_shot/annotations/*.jsonl*", _marvl_paths, 4913),
    ("marvl", "iglue/datasets/marvl/few_shot/annotations/*_train10x2.jsonl*", _marvl_paths, 85 + 87 + 90),
    ("wit", "iglue/datasets/wit/annotations/test_en.jsonl*", lambda r: [f"{r['wit_ix']}.jpg"], 685),
    ("coco", "vsr/data/splits/zeroshot/*.jsonl*", lambda r: [r["image_link"]], None),
]


@needs_data
@pytest.mark.parametrize(("dataset", "files", "paths", "count"), REAL)
def test_annotations_and_pictures_meet_in_one_key(dataset, files, paths, count):
    seen: dict[str, str] = {}
    for row in _rows(files):
        where = paths(row)
        keys = [forms[0] for forms in candidates(row)]
        assert [image_key(dataset, path) for path in where] == keys
        for key, path in zip(keys, where, strict=True):
            assert seen.setdefault(key, path.rpartition("/")[2]) == path.rpartition("/")[2]  # one picture a key
    assert count is None or len(seen) == count


@needs_data
def test_keys_of_image_lists():
    hexes = (DATA / "xm3600/image_ids.txt").read_text().split()
    assert [image_key("open_images", f"{name}.jpg") for name in hexes] == hexes and len(set(hexes)) == 3600
    for split, dataset in (("test_2017_mscoco", "coco"), ("val", "flickr30k")):
        names = (DATA / f"multi30k/data/task1/image_splits/{split}.txt").read_text().split()
        keys = [image_key(dataset, name) for name in names]
        assert [f"{key}.jpg" for key in keys] == [name.partition("#")[0] for name in names]


def test_every_dataset_has_a_round_trip():
    assert {dataset for dataset, *_ in REAL} | {"open_images"} == set(DATASETS)
