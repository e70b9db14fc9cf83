import json

import numpy as np
import pytest

from cache import DataError, Failure, InputNotFound, UsageError
from extractor.given_boxes import BoxExtractor, GivenBoxes

BOXES = [[10, 20, 30, 60], [0, 0, 5, 5]]
AS_XYWH = [[10, 20, 20, 40], [0, 0, 5, 5]]


def coco(path):
    path.write_text(
        json.dumps(
            {
                "images": [{"id": 7, "file_name": "val/a.jpg", "width": 1}, {"id": 8, "file_name": "val/b.jpg"}],
                "annotations": [{"image_id": 7, "bbox": box, "category_id": 1} for box in AS_XYWH],
            }
        )
    )


def results(path):
    path.write_text(json.dumps([{"image_id": "val/a.jpg", "bbox": box, "score": 0.5} for box in AS_XYWH]))


def lines(path):
    path.write_text("\n".join(json.dumps({"key": "val/a.jpg", "boxes": [box]}) for box in BOXES) + "\n\n")


def one_line(path):
    path.write_text(json.dumps({"image": "val/a.jpg", "boxes": BOXES}))


def npz(path):
    with path.open("wb") as file:
        np.savez(file, **{"val/a.jpg": np.array(BOXES)})


@pytest.mark.parametrize("write", [coco, results, lines, one_line, npz])
def test_every_layout_gives_the_same_boxes(tmp_path, write):
    write(tmp_path / "boxes")
    given = GivenBoxes(tmp_path / "boxes")
    found = given.of("val/a.jpg", 100, 100)
    assert found.dtype == np.float32 and found.tolist() == BOXES
    assert given.of("a.jpg", 100, 100).tolist() == given.of("train/a", 100, 100).tolist() == BOXES
    assert given.of("val/c.jpg", 100, 100).shape == (0, 4)


def test_one_array_is_for_every_image(tmp_path):
    np.save(tmp_path / "grid.npy", np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]))
    given = GivenBoxes(tmp_path / "grid.npy", units="relative")
    assert given.of("x", 200, 100).tolist() == [[0, 0, 100, 50], [100, 50, 200, 100]]
    sizes = GivenBoxes(tmp_path / "grid.npy", "xywh", "relative").of("y", 10, 10)
    assert sizes.tolist() == [[0, 0, 5, 5], [5, 5, 15, 15]]


def test_the_format_can_be_said(tmp_path):
    lines(tmp_path / "boxes")
    assert GivenBoxes(tmp_path / "boxes", "xywh").of("val/a.jpg", 9, 9).tolist() == [[10, 20, 40, 80], [0, 0, 5, 5]]
    coco(tmp_path / "coco")
    assert GivenBoxes(tmp_path / "coco", "xyxy").of("val/a.jpg", 9, 9).tolist() == AS_XYWH


def test_a_name_that_two_entries_have_finds_neither(tmp_path):
    rows = [{"key": key, "boxes": BOXES} for key in ("one/a.jpg", "two/a.jpg")]
    (tmp_path / "boxes").write_text("\n".join(map(json.dumps, rows)))
    given = GivenBoxes(tmp_path / "boxes")
    assert len(given.of("one/a.jpg", 9, 9)) == 2 and len(given.of("a.jpg", 9, 9)) == 0


def test_every_choice_shows_in_the_fingerprint(tmp_path):
    lines(tmp_path / "boxes")
    one_line(tmp_path / "other")
    choices = [
        GivenBoxes(tmp_path / "boxes").choices(),
        GivenBoxes(tmp_path / "boxes", "xywh").choices(),
        GivenBoxes(tmp_path / "boxes", units="relative").choices(),
        GivenBoxes(tmp_path / "other").choices(),
    ]
    assert all(choices.count(choice) == 1 for choice in choices)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"key": "a", "boxes": [[1, 2, 3, 4]]}\n{"key": "b"}', "line 2"),
        (b"not json", "line 1"),
        (b'{"key": "a", "boxes": [[1, 2, 3]]}', r"line 1, key 'a'.*\(1, 3\)"),
        (b'{"key": "a", "boxes": [["x", 2, 3, 4]]}', "line 1, key 'a'"),
        (b'{"key": "a", "boxes": 3}', "line 1"),
        (b'{"annotations": [{"image_id": 3, "bbox": [1, 2, 3, 4]}], "images": []}', "annotation 0.*image 3"),
        (b'{"annotations": [], "images": [{"id": 3}]}', "file_name"),
        (b'[{"image_id": 3}]', "result 0"),
        (b"PK\x03\x04broken", "damaged"),
        (b"\x93NUMPYbroken", "damaged"),
    ],
)
def test_what_cannot_be_understood_is_named(tmp_path, content, words):
    (tmp_path / "boxes").write_bytes(content)
    with pytest.raises(DataError, match=words):
        GivenBoxes(tmp_path / "boxes")


@pytest.mark.parametrize("key", ["COCO_val2014_000000000042", "000000000042", "000000000042.jpg", "42"])
def test_results_for_coco_name_pictures_by_number(tmp_path, key):
    (tmp_path / "boxes").write_text(json.dumps([{"image_id": 42, "bbox": box} for box in AS_XYWH]))
    assert GivenBoxes(tmp_path / "boxes").of(key, 100, 100).tolist() == BOXES
    assert len(GivenBoxes(tmp_path / "boxes").of("0042", 100, 100)) == 0


def test_pickled_arrays_are_never_loaded(tmp_path):
    np.save(tmp_path / "boxes.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match="objects"):
        GivenBoxes(tmp_path / "boxes.npy")


def npy(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "line 1 is not"),
        (b'{"key": "a", "boxes": ' + b"[" * 100_000, "line 1 is not"),
        (b'{"key": "a", "boxes": [[0, 0, 1, 1%s]]}' % (b"0" * 400), "line 1, key 'a': the boxes are not rows"),
        (npy(f"({10**12}, 4)"), "damaged"),
        (npy(f"({10**30}, 4)"), "damaged"),
        (npy("(((((("), "damaged"),
    ],
    ids=["deep", "deep line", "large number", "large array", "larger array", "no header"],
)
def test_files_that_are_made_to_fail_are_refused(tmp_path, content, words):
    (tmp_path / "boxes").write_bytes(content)
    with pytest.raises(DataError, match=f"boxes.*{words}"):
        GivenBoxes(tmp_path / "boxes")


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(InputNotFound, match="gone"):
        GivenBoxes(tmp_path / "gone")
    lines(tmp_path / "boxes")
    with pytest.raises(UsageError, match="--box-format"):
        GivenBoxes(tmp_path / "boxes", "yxyx")
    with pytest.raises(UsageError, match="--box-units"):
        GivenBoxes(tmp_path / "boxes", "xyxy", "percent")


def test_an_extractor_describes_the_boxes_of_a_file(small_extractor, pictures, tmp_path):
    rows = [{"key": "a", "boxes": [[0, 0, 0.5, 0.5]]}, {"key": "c", "boxes": [[0, 0, 1, 1], [0.2, 0.4, 0.2, 0.9]]}]
    (tmp_path / "boxes").write_text("\n".join(map(json.dumps, rows)))
    extractor = BoxExtractor(small_extractor, GivenBoxes(tmp_path / "boxes", units="relative"))
    images = [extractor.decode(picture, key) for picture, key in zip(pictures, "abc", strict=False)]
    found, without, degenerate = extractor.extract(images, list("abc"))
    assert found.boxes.tolist() == [[0, 0, 80, 60]]
    assert np.array_equal(found.features, small_extractor(pictures[:1], boxes=[found.boxes])[0].features)
    assert isinstance(without, Failure) and (without.key, without.kind) == ("b", "bad_boxes")
    assert isinstance(degenerate, Failure) and degenerate.kind == "bad_boxes" and "box 1 " in degenerate.message
