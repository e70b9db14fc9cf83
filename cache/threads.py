"""Pools of threads that read."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def threads(name: str, count: int) -> ThreadPoolExecutor:
    """The pool of that name of this process, made when it is first asked for: threads do not survive a fork."""
    return _pool(os.getpid(), name, count)


@cache
def _pool(pid: int, name: str, count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=f"roivault-{name}")
