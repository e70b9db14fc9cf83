"""Read an open shard in a process of its own, which a damaged file may kill: `python -m cache.probe FILE`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import lmdb

from .errors import CorruptRecord
from .record import decode


@dataclass
class Findings:
    """What reading every state of an open shard found."""

    records: int = 0
    failures: int = 0
    problems: list[str] = field(default_factory=list)


def probe(path: Path) -> Findings:
    """Read all of an open shard in a child process."""
    root = str(Path(__file__).resolve().parent.parent)
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    child = subprocess.run(
        [sys.executable, "-m", f"{__package__}.probe", os.path.abspath(path)],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
    )
    if child.returncode < 0:
        return Findings(problems=[f"reading it kills the process (signal {-child.returncode}): cut short or altered"])
    if child.returncode:
        return Findings(problems=[f"it cannot be read: {child.stderr.strip().splitlines()[-1:]}"])
    return Findings(**json.loads(child.stdout))


def _read_all(path: str) -> Findings:
    found = Findings()
    lock = os.access(f"{path}-lock", os.W_OK)
    try:
        with lmdb.open(path, subdir=False, readonly=True, create=False, lock=lock, max_dbs=3) as env:
            records, failures = (env.open_db(name, create=False) for name in (b"records", b"failures"))
            with env.begin(buffers=True) as txn:
                for key, value in txn.cursor(records):
                    found.records += 1
                    try:
                        decode(bytes(key).decode(), value)
                    except (CorruptRecord, UnicodeDecodeError) as error:
                        found.problems.append(str(error))
                for key, value in txn.cursor(failures):
                    found.failures += 1
                    try:
                        json.loads(bytes(value))
                    except ValueError as error:
                        found.problems.append(f"failure {bytes(key)!r} is corrupt: {error}")
                for name, db in (("records", records), ("failures", failures)):
                    expected, count = txn.stat(db)["entries"], getattr(found, name)
                    if expected != count:
                        found.problems.append(f"it has {count} {name}, LMDB counts {expected}")
    except lmdb.Error as error:
        found.problems.append(f"LMDB cannot read it ({error})")
    return found


if __name__ == "__main__":
    print(json.dumps(asdict(_read_all(sys.argv[1]))))
