"""How large a shuffle may be: what the user left open is chosen from the memory ceiling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hybridrec.data.effort import MEMORY
from hybridrec.data.reading import Reading
from hybridrec.data.shuffle import Shuffle

LANES = (2, 8)
LEAST_ROWS = 4096
LANE_SHARE = 0.25  # of the ceiling: the pages of the row groups that are open at a time
WINDOW_SHARE = 0.16  # two and a half windows are held at once; the rest is for finished batches


@dataclass(frozen=True)
class Mixing:
    """What was asked of a shuffle: its seed, and the rows and lanes of a window where they were stated.

    >>> Mixing(seed=1, rows=None, lanes=None)
    shuffle(seed=1)
    """

    seed: int
    rows: int | Literal["all"] | None
    lanes: int | None

    def __post_init__(self) -> None:
        if isinstance(self.rows, str) and self.rows != "all":
            raise ValueError(f'rows={self.rows!r}: a shuffle window has a number of rows, or "all"')
        Shuffle(self.seed, None if self.rows in (None, "all") else self.rows, self.lanes or 1)  # checks the values
        if self.lanes is not None and self.lanes < 1:
            raise ValueError(f"lanes={self.lanes}: a shuffle reads from at least 1 row group at a time")

    def __repr__(self) -> str:
        rows = "" if self.rows is None else f", rows={self.rows!r}"
        return f"shuffle(seed={self.seed}{rows}{'' if self.lanes is None else f', lanes={self.lanes}'})"

    def agrees_with(self, shuffle: Shuffle | None) -> bool:
        """Whether a shuffle is one that this could have become."""
        if shuffle is None or shuffle.seed != self.seed or self.lanes not in (None, shuffle.lanes):
            return False
        return self.rows is None or shuffle.rows == (None if self.rows == "all" else self.rows)

    def settle(self, reading: Reading, memory: int, total: Callable[[], int]) -> Shuffle:
        """The shuffle itself. What was not stated is a function of the data alone, so that the order of rows is one of
        (seed, epoch), whatever the batch size, the threads or the prefetch depth; only a ceiling below the usual one
        makes windows smaller. A state carries the answer.
        """
        usual = min(memory, MEMORY) if self.rows is None else MEMORY
        least, most = LANES
        lanes = self.lanes or max(least, min(most, int(usual * LANE_SHARE / max(reading.lane_bytes, 1))))
        rows = self.rows
        if rows == "all":
            self._check(total(), reading.row_bytes, memory)
            return Shuffle(self.seed, None, lanes)
        if rows is None:
            rows = max(LEAST_ROWS, int(usual * WINDOW_SHARE / reading.row_bytes) // LEAST_ROWS * LEAST_ROWS)
        else:
            self._check(rows, reading.row_bytes, memory)
        return Shuffle(self.seed, rows, lanes)

    def _check(self, rows: int, row_bytes: float, memory: int) -> None:
        needed = rows * row_bytes
        if needed > memory:
            raise ValueError(
                f"{self!r}: a window of {rows:,} rows needs about {needed / 2**20:,.0f} MiB, but the loader may hold "
                f"{memory / 2**20:,.0f} MiB; pass memory={int(1.5 * needed)} or fewer rows"
            )
