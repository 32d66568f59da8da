"""Ctrl-C and SIGTERM during a fit: finish the step, save, then stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A signal came, and the step before it is done."""


class Interruption:
    """Within it, the first signal only sets `number`; the second acts as it did before, at once.

    Signals reach the main thread alone: in another one, nothing changes. Nor does it for a signal that is ignored.
    """

    def __init__(self) -> None:
        self.number: int | None = None
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
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def reraise(self, message: str) -> None:
        """End as the signal would have ended: KeyboardInterrupt, or SystemExit 143."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt(message)
        raise SystemExit(128 + (self.number or 0))
