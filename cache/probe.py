"""Read LMDB files in a process of their own, which a damaged one may kill: here open shards, all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lmdb

from .errors import CorruptRecord
from .record import check_features, decode


@dataclass
class Findings:
    """What reading every state of an open shard found."""

    records: int = 0
    failures: int = 0
    problems: list[str] = field(default_factory=list)


def own_process(module: str, *arguments: str) -> dict[str, Any]:
    """What subprocess takes to run a module of this package. Paths among the arguments are to be absolute."""
    root = str(Path(__file__).resolve().parent.parent)
    others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {
        "args": [sys.executable, "-m", module, *arguments],
        "cwd": root,  # python looks for modules there first: whatever lies in the user's directory is not to be run
        "env": {**os.environ, "PYTHONPATH": os.pathsep.join([root, *map(os.path.abspath, others)])},
    }


def probe(path: Path, feature_dtype: str | None = None, dim: int | None = None) -> Findings:
    """Read all of an open shard in a child process.

    Args:
        feature_dtype, dim: what the features of the records must be; None: anything.
    """
    arguments = os.path.abspath(path), json.dumps([feature_dtype, dim])
    child = subprocess.run(**own_process(f"{__package__}.probe", *arguments), capture_output=True, text=True)
    if child.returncode < 0:
        return Findings(problems=[f"reading it kills the process (signal {-child.returncode}): cut short or altered"])
    if child.returncode:
        last = child.stderr.strip().rpartition("\n")[2]
        return Findings(problems=[f"it cannot be read: {last or f'exit code {child.returncode}'}"])
    return Findings(**json.loads(child.stdout))


def _read_all(path: str, feature_dtype: str | None, dim: int | None) -> Findings:
    found = Findings()
    lock = os.access(f"{path}-lock", os.W_OK)
    try:
        with lmdb.open(path, subdir=False, readonly=True, create=False, lock=lock, max_dbs=3) as env:
            records, failures, replaced = (
                env.open_db(name, create=False) for name in (b"records", b"failures", b"replaced")
            )
            with env.begin(buffers=True) as txn:
                for key, value in txn.cursor(records):
                    found.records += 1
                    try:
                        check_features(decode(bytes(key).decode(), value), feature_dtype, dim)
                    except (CorruptRecord, UnicodeDecodeError) as error:
                        found.problems.append(str(error))
                for key, value in txn.cursor(failures):
                    found.failures += 1
                    try:
                        json.loads(bytes(value))
                    except ValueError as error:
                        found.problems.append(f"failure {bytes(key)!r} is corrupt: {error}")
                for key, _ in txn.cursor(replaced):
                    if txn.get(key, db=records) is None and txn.get(key, db=failures) is None:
                        found.problems.append(f"{bytes(key)!r} is marked as replaced, and has no state")
                for name, db in (("records", records), ("failures", failures)):
                    expected, count = txn.stat(db)["entries"], getattr(found, name)
                    if expected != count:
                        found.problems.append(f"it has {count} {name}, LMDB counts {expected}")
    except lmdb.Error as error:
        found.problems.append(f"LMDB cannot read it ({error})")
    return found


if __name__ == "__main__":
    print(json.dumps(asdict(_read_all(sys.argv[1], *json.loads(sys.argv[2])))))
