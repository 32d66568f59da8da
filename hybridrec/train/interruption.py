"""Ctrl-C and SIGTERM during a fit: finish the step, save, then stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 5.0  # seconds within which a launcher passes on what its ranks have got from the terminal


class Interrupted(Exception):
    """A signal came, and the step before it is done."""


class Interruption:
    """Within it, the first signal only sets `number`; the second acts as it did before, at once.

    Signals reach the main thread alone: in another one, nothing changes. Nor does it for a signal that is ignored.
    With `launched`, by torchrun, signals of the next seconds are the first once more: Ctrl-C reaches launcher and
    ranks, and the launcher passes it on.
    """

    def __init__(self, launched: bool = False) -> None:
        self.number: int | None = None
        self._launched, self._first = launched, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # of a job in the background
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.number is None:
            self.number, self._first = number, time.monotonic()
            if self._launched:
                return
        elif time.monotonic() - self._first < SAME:
            return
        self._restore()
        if self._launched:
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def reraise(self, message: str) -> None:
        """End as the signal would have ended: KeyboardInterrupt, or SystemExit 143."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt(message)
        raise SystemExit(128 + (self.number or 0))
