"""The table of results of many runs: a file of JSON lines that is also the journal of what is done."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cache import DataError

Row = dict[str, Any]


class Table:
    """Rows of runs in a file of JSON lines, one {"run": ..., "status": "done" or "failed", ...} a line, the last one
    of a run being the one that counts.

    Raises: DataError: the file holds something else.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.rows: dict[str, Row] = {}
        data = self.path.read_bytes() if self.path.exists() else b""
        self._whole = data.rfind(b"\n") + 1  # what is behind the last line end was cut off
        for number, line in enumerate(data[: self._whole].split(b"\n")[:-1], 1):
            try:
                row = json.loads(line.decode())
                self.rows[_key(row["run"])] = {**row, "status": str(row["status"])}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError(
                    f"{self.path}, line {number}, is not a row of results ({error!r}): remove the line, and its run is "
                    "done again, or goes on from what it saved"
                ) from error

    def of(self, run: Any) -> Row | None:
        """The row of a run."""
        return self.rows.get(_key(run))

    def is_done(self, run: Any) -> bool:
        row = self.of(run)
        return row is not None and row["status"] == "done"

    def add(self, run: Any, status: str, **facts: Any) -> Row:
        """Write a row to the disk."""
        row = {"run": _plain(run), "status": status, **facts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._whole = file.tell()
        self.rows[_key(run)] = row
        return row


def _plain(run: Any) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(run) if hasattr(run, "__dataclass_fields__") else run))


def _key(run: Any) -> str:
    return json.dumps(_plain(run), sort_keys=True)
