"""Ending: before Python ends, threads of Gloo let go of what they have sent.

Where a thread of Gloo is the last to hold a tensor that Python knew, it asks for the interpreter to let go of it. Until
3.13, Python ends a thread that asks while it shuts down, here in the middle of a destructor: the process is aborted,
with "terminate called without an active exception", after all of its work is done.
"""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
WORKER = "pt_gloo_runloop"  # what torch calls such a thread
WITHIN = 5.0  # seconds, after which a thread that is still at work is left alone
LOOK = 0.002  # seconds between two looks
LOOKS = 3  # in a row, that find all of them at rest


@atexit.register
def let_gloo_rest() -> None:
    """Wait, and leave the interpreter to others meanwhile, until no thread of Gloo runs or is about to."""
    workers, until, at_rest = _workers(), time.monotonic() + WITHIN, 0
    while workers and at_rest < LOOKS and time.monotonic() < until:
        time.sleep(LOOK)
        at_rest = 0 if any(map(_runs, workers)) else at_rest + 1


def _workers() -> list[Path]:
    found = []
    for task in TASKS.iterdir() if TASKS.exists() else ():
        with suppress(OSError):  # it has ended
            if (task / "comm").read_text().strip() == WORKER:
                found.append(task)
    return found


def _runs(task: Path) -> bool:
    """Whether a thread is at work, or waits for a processor."""
    with suppress(OSError):
        return (task / "stat").read_text().rpartition(")")[2].split()[0] not in "SZX"
    return False
