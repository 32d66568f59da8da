"""Which tables are too large for a card, and how many rows of each are hot. A pure function of sizes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hybridrec.embedding.gpu import memory

MARGIN = 0.1  # of what is free on a card is left to steps at the least


class Candidate(NamedTuple):
    """A table that may have hot and cold rows; `row_bytes` of one on the card, with its state and its place in a step.

    `features` are those that look it up: the more there are, the more of its rows are in use.
    """

    rows: int
    row_bytes: int
    features: int = 1

    def hot(self, level: int) -> int:
        """Its hot rows where each feature has so many; all of them where that takes no more room."""
        hot = min(self.rows, level * self.features)
        tiered = hot * (self.row_bytes + memory.SLOT) + self.rows * memory.ENTRY
        return self.rows if tiered >= self.rows * self.row_bytes else hot

    def bytes(self, level: int) -> int:
        """What it takes on the card then."""
        hot = self.hot(level)
        return hot * self.row_bytes + (0 if hot == self.rows else hot * memory.SLOT + self.rows * memory.ENTRY)


def caches(tables: Sequence[Candidate], room: int) -> list[int] | None:
    """The hot rows of each table on a card with so much `room` for them, for some all; None where no choice fits.

    Every feature gets the same number of hot rows, the largest that fits, so that tables with fewer rows are whole and
    the largest ones share what is left. Of ids with frequencies 1 / k, C hot rows of N miss log(N / C) / log(N): one
    more saves 1 / (C log(N)), hardly less where N is larger, so that equal caches move the fewest rows in all.

    >>> item, user, day = Candidate(10**6, 100), Candidate(10**7, 100), Candidate(7, 100)
    >>> caches([item, user, day], room=440 * 10**6)
    [1000000, 2777771, 7]
    >>> caches([item, user, day], room=152_000_700)
    [500000, 500000, 7]
    """
    levels = range(_top(tables) + 1)
    level = bisect_right(levels, room, key=lambda level: sum(table.bytes(level) for table in tables)) - 1
    return None if level < 1 else [table.hot(level) for table in tables]


def _top(tables: Sequence[Candidate]) -> int:
    """Hot rows of a feature at which all tables are whole."""
    return max((-(-table.rows // table.features) for table in tables), default=1)
