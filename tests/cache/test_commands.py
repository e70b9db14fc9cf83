from __future__ import annotations

import json

import numpy as np
import pytest
import typer

from cache import Failure, StoreWriter, UsageError, open_store
from cache.commands import register, verify
from cache.verify import digest
from tests.cache.conftest import command_line

ODD = "odd\n\x1b[31m[bold]\u202e/key"


@pytest.fixture
def run():
    app = typer.Typer()
    register(app)
    app.command()(verify)
    return command_line(app)


@pytest.fixture
def store(tmp_path, make):
    path = tmp_path / "s.roi"
    words = {"classes": ["cat", "[red]dog", "c", "d", "e"], "attributes": ["big", "b", "c", "d"]}
    with StoreWriter(path, "float32", {"model": "m"}, words, {"device": "cpu", "threads": 2}) as writer:
        writer.write([make("a/1"), make("b/2", n=0), make(ODD)], [Failure("f\n1", "empty", "no\nbytes", "/x/\udcff")])
        writer.seal()
        writer.write([], [Failure("g", "timeout", "slow"), Failure("h", "empty", "")])
    return path


def test_info(run, store):
    text = run("info", store)
    for part in (str(store), "3", "2 empty, 1 timeout", "8 x float32", "5 names", "made with model", "shard-00001"):
        assert part in text
    (described,) = json.loads(run("info", store, "--json"))["stores"]
    assert described["records"] == 3 and described["failures"] == {"empty": 2, "timeout": 1}
    assert described["dim"] == 8 and described["fingerprint"] == {"model": "m"}
    assert described["vocabularies"] == {"classes": 5, "attributes": 4}
    assert [s["state"] for s in described["shards"]] == ["sealed", "sealed"]
    assert described["shards"][0]["provenance"] == [{"device": "cpu", "threads": 2}]
    assert described["bytes"] == sum(p.stat().st_size for p in store.glob("*.lmdb"))


def test_info_of_a_shard(run, store):
    (described,) = json.loads(run("info", store / "shard-00001.lmdb", "--json"))["stores"]
    assert described["records"] == 0 and described["failures"] == {"empty": 1, "timeout": 1}
    assert [s["name"] for s in described["shards"]] == ["shard-00001"]
    assert described["bytes"] == (store / "shard-00001.lmdb").stat().st_size


def test_info_of_several_stores(run, store, tmp_path):
    StoreWriter(tmp_path / "empty.roi").close()
    result = json.loads(run("info", store, tmp_path / "empty.roi", "--json"))
    assert result["records"] == 3 and [s["records"] for s in result["stores"]] == [3, 0]
    assert "3 records in all" in run("info", store, tmp_path / "empty.roi")


def test_ls(run, store):
    rows = [line.split("\t") for line in run("ls", store).splitlines()]
    assert sorted(rows) == sorted(
        [["a/1", "3", "640", "480"], ["b/2", "0", "640", "480"], [r"odd\n\x1b[31m[bold]\u202e/key", "3", "640", "480"]]
    )
    assert run("ls", store, "--pattern", "*/2").split("\t")[0] == "b/2"
    assert len(run("ls", store, "-n", 2).splitlines()) == 2
    rows = json.loads(run("ls", store, "--json"))
    assert {"key": ODD, "regions": 3, "width": 640, "height": 480} in rows and len(rows) == 3
    assert json.loads(run("ls", store, "--json", "-p", "nothing")) == []


def test_ls_failures(run, store):
    lines = run("ls", store, "--failures").splitlines()
    assert len(lines) == 3 and "f\\n1\tempty\tno\\nbytes\t/x/\\udcff" in lines
    assert run("ls", store, "--failures", "-p", "g") == "g\ttimeout\tslow\t\n"
    rows = json.loads(run("ls", store, "--failures", "--json"))
    assert {"key": "h", "kind": "empty", "message": "", "source": ""} in rows and len(rows) == 3


def test_show(run, store, make):
    text = run("show", store, "a/1")
    for part in ("640", "source_digest", "class_probs", "[3, 8]", "shard-00000"):
        assert part in text
    result = json.loads(run("show", store, ODD, "--json", "--top", 2))
    regions = make(ODD)
    assert result["key"] == ODD and result["regions"] == 3 and len(result["top"]) == 2
    assert result["source_digest"] == regions.source_digest.hex()
    assert (result["shard"], result["offset"], result["bytes"]) == open_store(store).location(ODD)
    assert result["fields"]["features"]["dtype"] == "float32"
    assert np.isclose(result["fields"]["features"]["max"], regions.features.max())
    words = open_store(store).manifest.vocabularies["classes"]
    assert [row["class"] for row in result["top"]] == [words[i] for i in regions.class_ids[:2]]
    assert json.loads(run("show", store, "b/2", "--json"))["fields"]["features"]["max"] is None
    with pytest.raises(KeyError, match="slow"):
        run("show", store, "g")
    with pytest.raises(UsageError):
        run("show", "a/1")


def test_show_an_open_record_without_words(run, tmp_path, make):
    with StoreWriter(tmp_path / "s.roi") as writer:
        writer.write([make("a"), make("plain", extras=False)])
        assert json.loads(run("show", tmp_path / "s.roi", "a", "--json"))["top"][0]["class"] in range(5)
        assert "offset        \t-" in run("show", tmp_path / "s.roi", "plain")


def test_verify(run, store, tmp_path):
    assert run("verify", store).startswith("ok: 3 records and 3 failures in 2 shards")
    assert run("verify", store, "--quiet") == ""
    assert run("verify", store, "--digest").splitlines()[-1] == f"digest\t{digest(store)}"
    ids = tmp_path / "ids.txt"
    ids.write_text("a/1\nb/2\nz\n\n")
    text = run("verify", store, "--ids", ids, code=65)
    assert "missing: z" in text and "1 ids are missing, 1 other keys are there" in text
    result = json.loads(run("verify", store, "--ids", ids, "--json", "--digest", code=65))
    assert result["missing"] == ["z"] and result["ok"] is False and result["digest"] == digest(store)
    ids.write_text("a/1\n")
    assert json.loads(run("verify", store, "--ids", ids, "--json"))["extra"] == 2


def test_ls_goes_on_after_a_corrupt_record(run, store):
    shard, offset, _ = open_store(str(store)).location("b/2")
    with open(store / f"{shard}.lmdb", "r+b") as file:
        file.seek(offset)
        file.write(b"damage")
    rows = {row["key"]: row["regions"] for row in json.loads(run("ls", store, "--json", code=65))}
    assert rows.keys() == {"a/1", "b/2", ODD} and rows["b/2"] is None and rows["a/1"] is not None
    assert len(run("ls", store, code=65).splitlines()) == 3


def test_ls_goes_on_without_a_shard(run, store, make):
    with StoreWriter(store, "float32") as writer:
        writer.write([make("z")])
    (store / "shard-00000.lmdb").unlink()
    rows = {row["key"]: row["regions"] for row in json.loads(run("ls", store, "--json", code=65))}
    assert rows == {"a/1": None, "b/2": None, ODD: None, "z": 3}


def test_verify_damage(run, store):
    with open(store / "shard-00000.lmdb", "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    text = run("verify", store, "--digest", "-q", code=65)
    assert "damaged: " in text and "shard-00000.lmdb" in text and "NOT ok" in text and "digest" not in text
    assert json.loads(run("verify", store, "--json", code=65))["problems"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_verify_ids_that_cannot_be_read(run, store, tmp_path, content):
    if content:
        (tmp_path / "ids").write_bytes(content)
    with pytest.raises(Exception, match="--ids") as error:
        run("verify", store, "--ids", tmp_path / "ids")
    assert error.value.exit_code == (2 if content else 66)
