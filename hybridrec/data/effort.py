"""How hard a loader works: its threads, how far it runs ahead, what it may hold, and to whom its threads give way."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace

MEMORY = 640 << 20  # bytes that a loader may hold unless told otherwise
NICE = 10  # of threads that decode for a GPU


@dataclass(frozen=True)
class Effort:
    """How hard the loader works: threads that decode, batches kept ready, and bytes it may hold at once."""

    threads: int
    prefetch: int
    memory: int
    on_bad_file: str = "error"

    def __post_init__(self) -> None:
        for name in ("threads", "prefetch", "memory"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: at least 1, a whole number")

    def beside_a_gpu(self) -> Effort:
        """The same, but all cores less two: the threads that start kernels and copies need one each."""
        cores = os.cpu_count() or 1
        return self if self.threads != cores else replace(self, threads=max(1, cores // 2, cores - 2))


def give_way() -> None:
    """Let the thread that starts the kernels of a GPU go first, and the one that feeds it: they are late at once."""
    if sys.platform == "linux":  # where threads have priorities of their own
        this = os.PRIO_PROCESS, threading.get_native_id()
        with suppress(OSError):
            os.setpriority(*this, max(NICE, os.getpriority(*this)))
