"""Locks on the file system, for processes that share a directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where whoever shares a directory must see to it alone
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock while the block runs; yield whether it is held.

    The system gives the lock back when the process ends, however it ends, so that none is ever left behind. The file
    stays where it is: removed, it could be locked twice, under its old and its new name.

    Args:
        path: the lock's file, which is made.
        wait: until another process gives it back; otherwise False is yielded where another one holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
        yield True
