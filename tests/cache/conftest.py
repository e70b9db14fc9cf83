"""Made-up regions and stores for the tests of the cache."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
import xxhash
from typer.testing import CliRunner

from cache import Regions, StoreWriter
from cache.environment import Environment


def make_regions(key: str, n: int = 3, d: int = 8, salt: int = 0, extras: bool = True, dtype=np.float32) -> Regions:
    """Regions that depend on their arguments only."""
    rng = np.random.default_rng([xxhash.xxh32_intdigest(key.encode()), salt])
    boxes = np.sort(rng.uniform(0, 100, (n, 2, 2)).astype(np.float32), axis=1).reshape(n, 4)
    optional = {}
    if extras:
        optional = dict(
            scores=rng.random(n, np.float32),
            class_ids=rng.integers(0, 5, n, np.int32),
            class_probs=rng.random(n, np.float32),
            attr_ids=rng.integers(0, 4, n, np.int32),
            attr_probs=rng.random(n, np.float32),
            source_digest=xxhash.xxh3_128_digest(f"{key} {salt}".encode()),
        )
    return Regions(key, 640, 480, boxes, rng.normal(size=(n, d)).astype(dtype), **optional)


def command_line(app: typer.Typer) -> Callable[..., str]:
    """Runs commands; gives what they print, and raises what they raise."""

    def run(*args: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout

    return run


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, where there is such a file system: stores sync their files all the time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def make():
    return make_regions


@pytest.fixture
def same():
    """Whether two Regions hold the same."""

    def compare(a: Regions, b: Regions) -> bool:
        plain = ("key", "width", "height", "source_digest")
        if any(getattr(a, name) != getattr(b, name) for name in plain) or a.arrays().keys() != b.arrays().keys():
            return False
        return all(
            x.dtype == b.arrays()[name].dtype and x.shape == b.arrays()[name].shape
            and x.tobytes() == b.arrays()[name].tobytes()
            for name, x in a.arrays().items()
        )  # fmt: skip

    return compare


@pytest.fixture
def killed_at():
    """Run something in a forked process that ends before its n-th change of a disk; whether it came so far."""

    def run(step: int, work: Callable[[], object]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                _end_at(step)
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, _KILLED)
        return code == _KILLED

    return run


_KILLED = 9
_CHANGES = (
    (os, "replace"), (os, "rename"), (os, "link"), (os, "fsync"), (os, "ftruncate"), (os, "mkdir"), (os, "rmdir"),
    (Path, "unlink"), (Path, "mkdir"), (Environment, "write"), (shutil, "copyfile"), (shutil, "rmtree"),
)  # fmt: skip


def _end_at(step: int) -> None:
    left = [step]

    def counted(change):
        def call(*args, **kwargs):
            left[0] -= 1
            if not left[0]:
                os._exit(_KILLED)
            return change(*args, **kwargs)

        return call

    for owner, name in _CHANGES:
        setattr(owner, name, counted(getattr(owner, name)))


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Where `python -m cache...` works."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def build(tmp_path, make):
    """Make a store: name -> each unit of keys in a shard of its own; the last one stays open on request."""

    def build(name: str, *units: list[str], open_last: bool = False, failures=(), **options):
        salt, d = options.pop("salt", 0), options.pop("d", 8)
        path = tmp_path / name
        writer = StoreWriter(path, "float32", **options)
        for place, unit in enumerate(units):
            writer.write([make(key, salt=salt, d=d) for key in unit], list(failures) if place == 0 else [])
            if not (open_last and place == len(units) - 1):
                writer.seal()
        if open_last:
            writer.__exit__(RuntimeError)
        else:
            writer.close()
        return path

    return build
