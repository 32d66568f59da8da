"""Accord: what ranks decide together about once a second, without a word at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from hybridrec.parallel.ranks import Ranks

EVERY = 1.0  # seconds between two accords
MOST = 10_000  # steps between them


class Wishes(NamedTuple):
    """What a rank would have happen: end by a signal, stop for a reason, save."""

    signal: int | None = None
    stop: str | None = None
    save: bool = False


class Accord:
    """Asks all ranks for their wishes at steps that all of them know.

    An accord is one all-reduce of four numbers. Each also fixes the next one: so many steps later as the slowest rank
    makes in a second.
    """

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._clock = ranks, clock
        self._calls, self._next = 0, 1
        self._since = clock()

    def reach(self, wishes: Callable[[], Wishes], now: bool = False) -> Wishes:
        """What all ranks do now, which is nothing but at an accord; `now` makes this call one, on all ranks."""
        self._calls += 1
        if not now and self._calls < self._next:
            return Wishes()
        mine = wishes()
        numbers = [float(mine.signal or 0), float(mine.stop is not None), float(mine.save), self._clock() - self._since]
        signal, stop, save, seconds = self._ranks.largest(torch.tensor(numbers, dtype=torch.float64)).tolist()
        self._next = steps_until_next(self._calls, seconds)
        self._calls, self._since = 0, self._clock()
        reason = self._reason(mine.stop) if stop else None
        return Wishes(int(signal) or None, reason, bool(save))

    def _reason(self, mine: str | None) -> str:
        reasons = self._ranks.all_told(mine)
        return next(reason for reason in reasons if reason is not None)


def steps_until_next(steps: int, seconds: float) -> int:
    """How many steps to make until the next accord, after so many in so many seconds.

    >>> steps_until_next(10, 2.0), steps_until_next(1, 30.0), steps_until_next(1, 0.0)
    (5, 1, 1)
    """
    if not seconds > 0:
        return 1
    return min(max(1, int(steps * EVERY / seconds)), MOST)
