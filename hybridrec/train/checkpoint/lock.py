"""One run at a time in a folder, and one writer of checkpoints; the lock of a killed process is free."""

from __future__ import annotations

import errno
import fcntl
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"
WITHOUT = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system that has no locks
_threads: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)  # the lock of a file is one per process


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Write checkpoints to the folder; waits for another thread that does, OSError if another process does."""
    with _threads[directory.resolve()], _file_held(directory, "writes checkpoints to"):
        yield


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Train into the folder; OSError if another thread or process does."""
    mine = _threads[directory.resolve()]
    if not mine.acquire(blocking=False):
        raise _taken(directory, "another thread of this process trains into")
    try:
        with _file_held(directory, "trains into"):
            yield
    finally:
        mine.release()


@contextmanager
def _file_held(directory: Path, doing: str) -> Iterator[None]:
    with open(directory / NAME, "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _taken(directory, f"another process {doing}") from None
            if error.errno not in WITHOUT:
                raise
        yield


def _taken(directory: Path, who: str) -> OSError:
    return OSError(errno.EAGAIN, f"{who} {directory}; give each run a folder of its own, or wait for it")
