"""One writer at a time in a folder, of all processes and threads; the lock of a killed process is free."""

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
    """Hold the folder; OSError if another process does."""
    with _threads[directory.resolve()], open(directory / NAME, "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                taken = f"another process writes checkpoints to {directory}; give each run a folder of its own"
                raise OSError(errno.EAGAIN, taken) from None
            if error.errno not in WITHOUT:
                raise
        yield
