from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cache import (
    DataError,
    Failure,
    InputNotFound,
    Regions,
    StoreLocked,
    StoreNotFound,
    StoreWriter,
    UsageError,
    open_store,
)
from cache.commands import register
from cache.convert import convert
from cache.verify import digest, verify


@pytest.fixture
def store(tmp_path, make):
    path = tmp_path / "s.roi"
    words = {"classes": list("abcde"), "attributes": list("wxyz")}
    with StoreWriter(path, "float32", {"model": "m", "feature_dtype": "float32"}, words) as writer:
        writer.write([make(f"k{i}", n=i) for i in range(5)], [Failure("bad", "empty", "no bytes", "/x")])
    return path


@pytest.fixture
def run():
    app = typer.Typer()
    register(app)

    def run(*args: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["convert", *map(str, args)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout

    return run


def test_store_to_store_keeps_everything(store, tmp_path, same):
    report = convert(store, tmp_path / "copy.roi")
    assert (report.records, report.failures, report.without_place, report.exit_code) == (5, 1, {}, 0)
    old, new = open_store(store), open_store(tmp_path / "copy.roi")
    assert digest(store) == digest(tmp_path / "copy.roi") and verify(tmp_path / "copy.roi").ok
    assert list(old.failures()) == list(new.failures())
    assert (old.manifest.fingerprint, old.manifest.vocabularies) == (
        new.manifest.fingerprint,
        new.manifest.vocabularies,
    )


def test_store_of_another_dtype(store, tmp_path):
    convert(store, tmp_path / "half.roi", feature_dtype="float16")
    old, new = open_store(store), open_store(tmp_path / "half.roi")
    assert new.manifest.feature_dtype == "float16"
    assert new.manifest.fingerprint == {"model": "m", "feature_dtype": "float16", "converted_from": "float32"}
    assert all(np.array_equal(new[k].features, old[k].features.astype(np.float16)) for k in old)
    assert all(new[k].boxes.tobytes() == old[k].boxes.tobytes() for k in old)


def test_features_too_large_for_the_dtype_are_left_out_and_said_to_be(tmp_path, make):
    big = make("big").replace(features=np.full((3, 8), 1e5, np.float32))
    with StoreWriter(tmp_path / "s.roi", "float32") as writer:
        writer.write([make("a"), big])
    report = convert(tmp_path / "s.roi", tmp_path / "half.roi", feature_dtype="float16")
    assert (report.records, report.left_out, report.exit_code) == (1, 1, 65)
    assert [(p.key, p.kind) for p in report.problems] == [("big", "value_range")] and "65504" in report.problems[0].why
    assert [f.key for f in open_store(tmp_path / "half.roi").failures()] == ["big"]


def test_the_source_is_left_alone_and_the_destination_never_replaced(store, tmp_path):
    before = {p.name: p.read_bytes() for p in store.iterdir()}
    convert(store, tmp_path / "x.lmdb")
    with pytest.raises(UsageError, match="x.lmdb is there already"):
        convert(store, tmp_path / "x.lmdb")
    with pytest.raises(UsageError, match="s.roi is there already"):
        convert(store, store)
    assert {p.name: p.read_bytes() for p in store.iterdir()} == before


def test_an_empty_result_is_an_error_and_leaves_nothing(tmp_path):
    StoreWriter(tmp_path / "empty.roi").close()
    for destination in ("a.roi", "a.lmdb"):
        with pytest.raises(DataError, match="has no records.*was not made"):
            convert(tmp_path / "empty.roi", tmp_path / destination)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.roi"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (dict(destination_format="volta-lmdb", feature_dtype="float16"), UsageError, "float32; --dtype float16"),
        (dict(destination_format="parquet"), UsageError, "no format 'parquet'"),
        (dict(feature_dtype="int8", destination_format="store"), UsageError, "int8"),
        (dict(vocabularies={"classes": ["a"]}, destination_format="store"), UsageError, "its own names"),
        (dict(), UsageError, "--to"),
        (dict(destination_format="store", source_format="volta-lmdb"), DataError, "LMDB"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(store, tmp_path, arguments, error, text):
    with pytest.raises(error, match=text):
        convert(store, tmp_path / "out", **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["s.roi"]


def test_a_shard_is_read_as_one_of_a_store(store, tmp_path):
    (shard,) = store.glob("*.lmdb")
    assert convert(shard, tmp_path / "b.roi").source_format == "store" and digest(tmp_path / "b.roi") == digest(store)


def test_from_foreign_to_foreign_goes_through_a_store(store, tmp_path):
    convert(store, tmp_path / "x.lmdb")
    with pytest.raises(UsageError, match="one side must be a store"):
        convert(tmp_path / "x.lmdb", tmp_path / "y", destination_format="volta-lmdb-raw")
    with pytest.raises(InputNotFound):
        convert(tmp_path / "nothing", tmp_path / "y.roi")
    with pytest.raises(StoreNotFound):
        convert(tmp_path / "nothing.roi", tmp_path / "y.roi")


def test_names_given_to_a_foreign_cache(store, tmp_path):
    convert(store, tmp_path / "x.lmdb")
    words = {"classes": list("abcde"), "attributes": list("wxyz")}
    convert(tmp_path / "x.lmdb", tmp_path / "named.roi", vocabularies=words)
    assert open_store(tmp_path / "named.roi").manifest.vocabularies == words
    report = convert(tmp_path / "x.lmdb", tmp_path / "few.roi", vocabularies={"classes": ["a", "b", "c"]})
    top = [p for p in report.problems if "3 names of classes" in p.why and "--class-offset" in p.why]
    assert report.left_out == len(top) > 0
    assert report.records == sum(open_store(store)[k].class_ids.max(initial=0) < 3 for k in open_store(store))


def test_a_store_with_a_damaged_record(store, tmp_path):
    shard, offset, length = open_store(store).location("k3")
    data = bytearray((store / f"{shard}.lmdb").read_bytes())
    data[offset + length - 5] ^= 1
    (store / f"{shard}.lmdb").write_bytes(data)
    report = convert(store, tmp_path / "copy.roi")
    assert (report.records, report.left_out, report.exit_code) == (4, 1, 65)
    assert report.problems[0].key == "k3" and "checksum" in report.problems[0].why


def test_one_at_a_time(store, tmp_path):
    from cache.building import building

    with building(tmp_path / "x.roi") as target:
        target.write_text("first")
        with pytest.raises(StoreLocked, match="x.roi.partial"):
            convert(store, tmp_path / "x.roi")
    assert (tmp_path / "x.roi").read_text() == "first"
    (tmp_path / "mine.roi.partial").mkdir()
    (tmp_path / "mine.roi.partial" / "letter").write_text("dear")
    with pytest.raises(UsageError, match="letter"):
        convert(store, tmp_path / "mine.roi")
    assert (tmp_path / "mine.roi.partial" / "letter").read_text() == "dear"


SLOW = """
import sys, time
from pathlib import Path
from cache.convert import convert
def wait(records):
    print(records, flush=True)
    time.sleep(0.2)
convert(Path(sys.argv[1]), Path(sys.argv[2]), destination_format=sys.argv[3], on_progress=wait)
"""


@pytest.mark.parametrize("fmt", ["store", "volta-lmdb"])
def test_killed_and_run_again(tmp_path, make, fmt, repo_root):
    with StoreWriter(tmp_path / "s.roi", "float32") as writer:
        writer.write([make(f"k{i:03}") for i in range(300)])
    before = digest(tmp_path / "s.roi")
    command = [sys.executable, "-c", SLOW, tmp_path / "s.roi", tmp_path / "out", fmt]
    process = subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out").exists() and (tmp_path / "out.partial").is_dir()
    assert digest(tmp_path / "s.roi") == before
    report = convert(tmp_path / "s.roi", tmp_path / "out", destination_format=fmt)
    assert report.records == 300 and not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("fmt", ["store", "volta-lmdb"])
def test_killed_at_any_step_and_run_again(tmp_path, make, fmt, killed_at):
    source, out = tmp_path / "s.roi", tmp_path / "out"
    with StoreWriter(source, "float32") as writer:
        writer.write([make(f"k{i}") for i in range(70)])
    before, step = digest(source), 1
    while killed_at(step, lambda: convert(source, out, destination_format=fmt)):
        assert digest(source) == before and verify(source).ok
        if not out.exists():
            assert convert(source, out, destination_format=fmt).records == 70
        assert not (tmp_path / "out.partial" / "out").exists()
        if fmt == "store":
            assert digest(out) == before
            shutil.rmtree(out)
        else:
            shutil.rmtree(out) if out.is_dir() else out.unlink()
        shutil.rmtree(tmp_path / "out.partial", ignore_errors=True)
        step += 3


def test_records_without_regions_take_the_dimension_of_the_others(tmp_path):
    """Layouts of bytes do not say it."""
    import pickle

    import lmdb

    def record(n: int) -> bytes:
        fields = {"features": b"" if not n else np.ones((n, 6), np.float32), "boxes": np.zeros((n, 4), np.float32)}
        return pickle.dumps({**fields, "img_w": 3, "img_h": 4})

    with lmdb.open(str(tmp_path / "x.lmdb"), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for key, n in ((b"a", 0), (b"b", 0), (b"c", 2), (b"d", 0)):
            txn.put(key, record(n))
    report = convert(tmp_path / "x.lmdb", tmp_path / "s.roi")
    assert report.records == 4
    assert {k: open_store(tmp_path / "s.roi")[k].features.shape for k in "abcd"} == {
        "a": (0, 6), "b": (0, 6), "c": (2, 6), "d": (0, 6)
    }  # fmt: skip


def test_command(run, store, tmp_path):
    text = run(store, "-o", tmp_path / "x.lmdb")
    for part in (
        "volta-lmdb",
        "5 records",
        "no place for fingerprint: in 1",
        "no place for failures",
        "ids, destination",
    ):
        assert part in text
    report = json.loads(run(tmp_path / "x.lmdb", "-o", tmp_path / "y.roi", "--dtype", "float32", "--json"))
    assert report["records"] == 5 and report["source_format"] == "volta-lmdb" and report["feature_dtype"] == "float32"
    assert report["exit_code"] == 0 and report["problems"] == []


def test_command_reports_what_is_left_out(run, store, tmp_path):
    (tmp_path / "classes.txt").write_text("A,aa\nb\n")
    convert(store, tmp_path / "x.lmdb")
    text = run(tmp_path / "x.lmdb", "-o", tmp_path / "y.roi", "--classes", tmp_path / "classes.txt", code=65)
    assert "left out: record 'k" in text and "value_range" in text
    assert open_store(tmp_path / "y.roi").manifest.vocabularies == {"classes": ["a", "b"]}
    out = run(tmp_path / "x.lmdb", "-o", tmp_path / "z.roi", "--classes", tmp_path / "classes.txt", "--json", code=65)
    assert json.loads(out)["left_out"] == len(json.loads(out)["problems"]) > 0


@pytest.mark.parametrize(("content", "error"), [(None, InputNotFound), ("", UsageError), ("a\n\nb\n", UsageError)])
def test_command_refuses_a_bad_list_of_names(run, store, tmp_path, content, error):
    if content is not None:
        (tmp_path / "names.txt").write_text(content)
    with pytest.raises(error, match="names.txt"):
        run(store, "-o", tmp_path / "y.roi", "--classes", tmp_path / "names.txt")


def test_memory_does_not_grow_with_the_number_of_records(tmp_path, repo_root):
    """An LMDB of 33 MB is written and read by a process that takes 30 MB of its own besides what starting takes."""
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (50, 1))
    features = np.random.default_rng(0).random((50, 512), np.float32)
    with StoreWriter(tmp_path / "s.roi", "float32") as writer:
        for start in range(0, 250, 50):
            writer.write([Regions(f"k{i}", 5, 5, boxes, features) for i in range(start, start + 50)])
    code = (
        "import sys; from pathlib import Path; from cache.convert import convert\n"
        "def private(): return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('RssAnon'))\n"
        "peak = [0]; start = private()\n"
        "def look(n): peak[0] = max(peak[0], private())\n"
        "source, foreign, back = map(Path, sys.argv[1:])\n"
        "convert(source, foreign, on_progress=look); convert(foreign, back, on_progress=look)\n"
        "print((peak[0] - start) // 1024)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "s.roi", tmp_path / "x.lmdb", tmp_path / "back.roi"]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30
