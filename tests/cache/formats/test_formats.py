"""What holds for every registered layout: a new one is tested here by being registered."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cache import InputNotFound, UsageError, open_store
from cache.convert import convert
from cache.formats import FORMATS, by_suffix, detect, get_format
from cache.formats.base import ALL_FIELDS
from cache.regions import FAILURE_KINDS

ALL = [get_format(name) for name in FORMATS]
BOTH_WAYS = [fmt for fmt in ALL if fmt.read and fmt.write]
each_both_ways = pytest.mark.parametrize("fmt", BOTH_WAYS, ids=lambda fmt: fmt.name)
each_written = pytest.mark.parametrize("fmt", [fmt for fmt in ALL if fmt.write], ids=lambda fmt: fmt.name)


@pytest.mark.parametrize("name", FORMATS)
def test_declaration(name):
    fmt = get_format(name)
    assert fmt.name == name and fmt.summary and fmt.ids and (fmt.read or fmt.write)
    assert fmt.carries <= ALL_FIELDS and "boxes" in fmt.carries
    module = FORMATS[name].partition(":")[0]
    assert (Path(__file__).parent / f"test_{module}.py").exists(), "each layout's module has a test of its own"


def test_the_page_tells_of_layouts_what_they_say_of_themselves():
    page = Path(__file__).resolve().parents[3] / "docs" / "inheriting-a-cache.md"
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \| ((?:read|written|, )+) \|$", page.read_text("utf-8"), re.M)
    assert len(rows) >= 10
    for name, summary, ways in rows:
        fmt = get_format(name)
        told = [word for word, way in (("read", fmt.read), ("written", fmt.write)) if way]
        assert (summary, ways) == (fmt.summary, ", ".join(told))


@each_both_ways
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_there_and_back(fmt, dtype, store, tmp_path, records, same):
    out = convert(store, tmp_path / "foreign", destination_format=fmt.name)
    assert (out.records, out.left_out, out.exit_code, out.destination_format) == (len(records), 0, 0, fmt.name)
    assert detect(tmp_path / "foreign").name.startswith(fmt.name.removesuffix("-raw"))

    report = convert(tmp_path / "foreign", tmp_path / "back.roi", fmt.name, feature_dtype=dtype)
    assert (report.records, report.left_out, report.feature_dtype) == (len(records), 0, dtype)
    back = open_store(tmp_path / "back.roi")
    assert sorted(back) == sorted(record.key for record in records) and back.manifest.feature_dtype == dtype
    for record in records:
        found = back[record.key]
        assert (found.width, found.height, len(found)) == (record.width, record.height, len(record))
        carried = fmt.carries | ({"scores"} if "class_probs" in fmt.carries else set())  # here the two are the same
        for name, array in record.arrays().items():
            if name in carried and (len(record) or getattr(found, name) is not None):  # of no regions nothing is said
                _compare(name, array, getattr(found, name), dtype)
        if "source_digest" in fmt.carries:
            assert found.source_digest == record.source_digest
        dropped = {name for name in ALL_FIELDS - carried if getattr(record, name) is not None}
        assert all(getattr(found, name) is None for name in dropped)
        assert dropped <= out.without_place.keys(), "what is not carried over is reported"


def _compare(name: str, there: np.ndarray, back: np.ndarray, dtype: str) -> None:
    assert back is not None and back.shape == there.shape, name
    if name in ("features", "global_features") and dtype != "float32":
        assert np.array_equal(back, there.astype(dtype)), name
    else:
        assert back.dtype == there.dtype and back.tobytes() == there.tobytes(), name


@each_both_ways
def test_scores_that_class_probs_do_not_say_are_kept_or_reported(fmt, tmp_path, full, put_store):
    record = full("k", 3, same_scores=False)
    report = convert(put_store([record]), tmp_path / "foreign", destination_format=fmt.name)
    assert ("scores" in report.without_place) == ("scores" not in fmt.carries)
    convert(tmp_path / "foreign", tmp_path / "back.roi", fmt.name, feature_dtype="float32")
    if "scores" in fmt.carries:
        assert open_store(tmp_path / "back.roi")["k"].scores.tobytes() == record.scores.tobytes()


@each_written
def test_what_a_store_says_besides_records_is_reported(fmt, store, tmp_path):
    report = convert(store, tmp_path / "foreign", destination_format=fmt.name)
    assert {"fingerprint", "provenance", "failures (keys without a record)"} <= report.without_place.keys()
    assert ("names of classes" in report.without_place) == (fmt.vocabularies is None)
    assert report.conventions["destination"] == fmt.ids


DIFFICULT = ["keys", "../out", "/abs", "a//b", ".", "a/../../b", "tab\tkey", "line\nkey", '"q', "x" * 300]


@each_written
def test_a_difficult_key_comes_back_or_is_refused(fmt, tmp_path, full, put_store):
    folder = tmp_path / "here"
    folder.mkdir()
    source = put_store([full(key) for key in [*DIFFICULT, "ok"]])
    report = convert(source, folder / "foreign", destination_format=fmt.name)
    refused = {problem.key for problem in report.problems}
    assert refused <= set(DIFFICULT) and report.records + len(refused) == len(DIFFICULT) + 1
    assert report.exit_code == (65 if refused else 0)
    assert all(problem.why and problem.kind in FAILURE_KINDS for problem in report.problems)
    assert [path.name for path in folder.iterdir()] == ["foreign"], "nothing is written elsewhere"
    assert {path.name for path in tmp_path.iterdir()} == {"here", source.name}
    if fmt.read:
        convert(folder / "foreign", tmp_path / "back.roi", fmt.name)
        assert set(open_store(tmp_path / "back.roi")) == {*DIFFICULT, "ok"} - refused


@each_both_ways
@pytest.mark.parametrize("size", [0, 0.9])
def test_a_file_that_is_cut_short(fmt, size, store, tmp_path):
    """Of every file of the layout in turn: an error or problems, never a crash or silence."""
    from cache import RoivaultError

    convert(store, tmp_path / "foreign", destination_format=fmt.name)
    whole = tmp_path / "foreign"
    for i, file in enumerate(sorted(p for p in [whole, *whole.rglob("*")] if p.is_file())):
        data = file.read_bytes()
        file.write_bytes(data[: int(size * len(data)) if size < 1 else size])
        try:
            report = convert(whole, tmp_path / f"back {i}.roi", fmt.name)
        except RoivaultError as error:
            assert str(error) and not (tmp_path / f"back {i}.roi").exists()
        else:
            assert report.problems or report.remarks or report.records == 6
        file.write_bytes(data)


def test_names_and_contents_that_tell_no_format(tmp_path):
    with pytest.raises(InputNotFound, match="nowhere"):
        detect(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("some text\n")
    with pytest.raises(UsageError, match="--from"):
        detect(tmp_path / "notes.txt")
    with pytest.raises(UsageError, match="--to"):
        by_suffix(tmp_path / "out.xyz")
    with pytest.raises(UsageError, match="'parquet'.*volta-lmdb"):
        get_format("parquet")


def test_listing_the_formats_imports_none_of_their_libraries(repo_root):
    code = (
        "import sys, cache.commands\n"
        "from cache.formats import FORMATS, get_format\n"
        "formats = [get_format(name) for name in FORMATS]\n"
        "print([m for m in ('h5py', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
