"""Rows of parquet files: keys are listed without touching the images, which are read row group by row group."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cache import UsageError
from extractor.images import DecodePolicy, ImageError

from .cells import cell_bytes
from .handles import identity

KEYS_AT_ONCE = 4096
CELLS_AT_ONCE = 16
BATCHES_KEPT, BYTES_KEPT = 8, 2**28  # behind the one read last: decode threads are that far apart at most, mostly
MOST_OPEN = 4


@dataclass(frozen=True)
class CellLocator:
    """An image in a row of a parquet file."""

    path: str
    group: int
    row: int  # within the group
    column: str

    def read(self, key: str, policy: DecodePolicy, limit: int | None = None) -> bytes:
        try:
            cell = _cursor(self.path, self.group, self.column).cell(self.row)
        except ImportError as error:
            raise UsageError("parquet tables need pyarrow: pip install pyarrow") from error
        except MemoryError:
            raise
        except Exception as error:  # pyarrow meets damage with errors of many types
            raise ImageError(key, "unreadable", f"row group {self.group} cannot be read: {error}") from error
        return cell_bytes(key, cell, policy)[:limit]


class _Cursor:
    """One pass over a column of a row group, that keeps what it has just passed; going back further starts again."""

    def __init__(self, path: str, group: int, column: str):
        self._where = path, group, column
        self._lock = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        import pyarrow.parquet

        path, group, column = self._where
        file = pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        self._file, self._next = file, 0
        self._batches = file.iter_batches(CELLS_AT_ONCE, row_groups=[group], columns=[column], use_threads=False)
        self._kept: deque = deque(maxlen=BATCHES_KEPT)  # (first row, column)

    def cell(self, row: int) -> Any:
        with self._lock:
            if self._kept and row < self._kept[0][0]:
                self._restart()
            while self._next <= row:
                column = next(self._batches).column(0)
                self._kept.append((self._next, column))
                self._next += len(column)
                while len(self._kept) > 2 and sum(kept.nbytes for _, kept in self._kept) > BYTES_KEPT:
                    self._kept.popleft()
            first, column = next(kept for kept in self._kept if kept[0] <= row < kept[0] + len(kept[1]))
            return column[row - first].as_py()


_cursors: OrderedDict[tuple, _Cursor] = OrderedDict()
_lock = threading.Lock()


def _cursor(path: str, group: int, column: str) -> _Cursor:
    who = identity(path), group, column
    with _lock:
        cursor = _cursors.get(who)
        if cursor is None:
            cursor = _cursors[who] = _Cursor(path, group, column)
        _cursors.move_to_end(who)
        if len(_cursors) > MOST_OPEN:
            _cursors.popitem(last=False)
        return cursor


def parquet_columns(path: str) -> list[str]:
    """Names of the columns, and `image.path` for a field within one. Raises: whatever pyarrow does for damage."""
    import pyarrow.parquet
    import pyarrow.types

    with pyarrow.parquet.ParquetFile(path) as file:
        fields = list(file.schema_arrow)
    inner = [f"{f.name}.{part.name}" for f in fields if pyarrow.types.is_struct(f.type) for part in f.type]
    return [field.name for field in fields] + inner


def parquet_keys(path: str, column: str | None) -> Iterator[tuple[int, int, Any]]:
    """(row group, row within it, value of the column) of every row; None for the value when no column is given."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
        for group in range(file.num_row_groups):
            if column is None:
                yield from ((group, row, None) for row in range(file.metadata.row_group(group).num_rows))
                continue
            row = 0
            for batch in file.iter_batches(KEYS_AT_ONCE, row_groups=[group], columns=[column], use_threads=False):
                for value in batch.column(0):
                    plain = value.as_py()
                    yield group, row, next(iter(plain.values()), None) if isinstance(plain, dict) else plain
                    row += 1
