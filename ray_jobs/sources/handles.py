"""Files that many items are read from: opened when first needed, a few at a time in each process, read at offsets."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict

MOST_OPEN = 32


class _Handle:
    """An open file. It closes with its last reference, so that no thread loses it in the middle of a read."""

    def __init__(self, path: str):
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            raise OSError(0, "not a regular file", path)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


_handles: OrderedDict[tuple, _Handle] = OrderedDict()
_lock = threading.Lock()


def identity(path: str) -> tuple:
    """Changes when the file at the path becomes another. Raises: OSError."""
    status = os.stat(path)
    return path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_at(path: str, offset: int, size: int) -> bytes:
    """`size` bytes of a file from `offset` on, fewer at its end. Any thread, any process. Raises: OSError."""
    who = identity(path)
    with _lock:
        handle = _handles.get(who) or _Handle(path)
        _handles[who] = handle
        _handles.move_to_end(who)
        if len(_handles) > MOST_OPEN:
            _handles.popitem(last=False)
    parts = []
    while size > 0 and (part := os.pread(handle.fd, min(size, 1 << 30), offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
