from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest
import typer

import roivault
from cache import Failure, StoreWriter, UsageError, open_store
from cache.tool_commands import register
from cache.verify import digest, verify
from tests.cache.conftest import command_line


@pytest.fixture
def run():
    app = typer.Typer()
    register(app)
    return command_line(app)


@pytest.fixture
def build(tmp_path, make):
    def build(name, keys, failed=(), **options):
        with StoreWriter(tmp_path / name, "float32", {"x": 1}, **options) as writer:
            for key in keys:
                writer.write([make(key, d=100)])
            writer.write([], [Failure(key, "empty", "nothing") for key in failed])
        return tmp_path / name

    return build


def test_merge(run, build, tmp_path):
    a, b = build("a b.roi", ["x", "y"], ["f"]), build("ü.roi", ["y", "f"])
    text = run("merge", a, b, "-o", tmp_path / "o.roi")
    assert all(
        part in text
        for part in ("3 records, 0 failures, 2 shards", "counted once: 1", "gave way to what another store has: 1")
    )
    report = json.loads(run("merge", str(tmp_path / "*.roi"), "-o", tmp_path / "p", "--copy", "--json"))
    assert (report["records"], report["duplicates"], report["linked"]) == (3, 4, 0)
    assert run("merge", a, "-o", tmp_path / "q", "--quiet") == ""


def test_subset(run, build, tmp_path):
    a = build("a.roi", ["x/1", "x/2", "y"], ["f"])
    assert "2 records, 1 failures" in run("subset", a, "y", "f", "x/1", "-o", tmp_path / "o")
    ids = tmp_path / "ids.txt"
    ids.write_bytes(b"x/2\r\nz\n\nx/2\n")
    text = run("subset", a, "--ids", ids, "-o", tmp_path / "p", code=65)
    assert "missing: z" in text and "nothing was made" in text and not (tmp_path / "p").exists()
    report = json.loads(run("subset", a, "--ids", ids, "-o", tmp_path / "p", "--missing", "skip", "--json"))
    assert (report["records"], report["missing"], report["exit_code"]) == (1, ["z"], 0)
    assert "2 records" in run("subset", a, "--pattern", "x/*", "-o", tmp_path / "q")
    assert "3 records" in run("subset", a, "-o", tmp_path / "r") and digest(tmp_path / "r") == digest(a)
    with pytest.raises(UsageError, match="one of them"):
        run("subset", a, "y", "--pattern", "x", "-o", tmp_path / "s")


def test_repair(run, build, tmp_path):
    a = build("a.roi", ["x", "y"])
    assert "nothing is to be mended: 2 records" in run("repair", a) and run("repair", a, "--quiet") == ""
    name, offset, length = open_store(a).location("x")
    with open(a / f"{name}.lmdb", "r+b") as file:
        file.seek(offset + length - 1)
        file.write(b"\x01")
    text = run("repair", a, "--dry-run", code=65)
    assert "lost: x" in text and "would be done" in text and not verify(a).ok
    report = json.loads(run("repair", a, "--json", code=65))
    assert (report["lost"], report["records"], report["aside"]) == (["x"], 1, ["shard-00000.lmdb.damaged"])
    assert verify(a).ok and json.loads(run("repair", a, "--json"))["actions"] == []


# -- as processes


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "roivault", *map(str, args)]


LINES = {
    "merge": lambda a, b, out: command("merge", a, b, "-o", out, "--copy"),
    "subset": lambda a, b, out: command("subset", a, "-o", out),
    "convert": lambda a, b, out: command("convert", a, "-o", out, "--dtype", "float32"),
}


@pytest.mark.parametrize("verb", ["merge", *(pytest.param(v, marks=pytest.mark.slow) for v in ("subset", "convert"))])
def test_a_disk_that_fills_up(build, tmp_path, repo_root, verb):
    """A limit of the size of files acts like a disk that is full in the middle."""
    a, b, out = build("a.roi", map(str, range(60))), build("b.roi", ["y"]), tmp_path / "o.roi"
    before = digest(a)
    line = ["bash", "-c", 'ulimit -f 100; trap "" XFSZ; exec "$@"', "-", *LINES[verb](a, b, out)]
    failed = subprocess.run(line, cwd=repo_root, capture_output=True, text=True)
    assert failed.returncode == 74 and not out.exists() and not out.with_name("o.roi.partial").exists(), failed.stderr
    subprocess.run(LINES[verb](a, b, out), cwd=repo_root, check=True, capture_output=True)
    assert verify(out).ok and digest(a) == before


def forked(line: list[str]) -> int:
    """The front door in a child; returns its process id."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                code = roivault.main(line)
        except KeyboardInterrupt:  # it had not begun
            code = 130
        os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", [*LINES, "repair"])
@pytest.mark.parametrize("blow, code", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_stopped_at_any_moment_it_can_be_run_again(build, tmp_path, verb, blow, code):
    """The process gets the signal after a random time, again and again; then the line is run to its end."""
    a = build("a.roi", map(str, range(3000)), shard_size=2_000_000)
    b, out = build("b.roi", ["y"]), tmp_path / "o.roi"
    before, rng, codes = digest(a), random.Random(0), []
    if verb == "repair":
        (a / "shard-00000.idx").unlink()
        with open(a / "shard-00001.lmdb", "r+b") as file:
            file.write(bytes(4096))
        (a / "manifest.json").write_bytes((a / "manifest.json").read_bytes()[:-1])
    line = (["repair", str(a)] if verb == "repair" else LINES[verb](a, b, out)[3:]) + ["--quiet"]
    for _ in range(15):
        child = forked(line)
        time.sleep(rng.random() ** 3)  # mostly short: a quick machine is done in a fifth of a second
        os.kill(child, blow)
        codes.append(ended(child))
        if verb != "repair":
            assert verify(a).ok and digest(a) == before
            shutil.rmtree(out, ignore_errors=True)
    assert set(codes) <= {code, 0} and code in codes
    assert ended(forked(line)) == 0
    assert verify(a).ok and digest(a) == before
    if verb != "repair":
        assert verify(out).ok and set(open_store(a).keys()) <= set(open_store(out).keys())
        assert not out.with_name("o.roi.partial").exists()
    assert not [name for name in os.listdir(a) if name.endswith((".tmp", ".lock", "-lock"))]
