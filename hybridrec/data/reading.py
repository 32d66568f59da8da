"""How row groups are read and their rows cut into batches: what a loader must know beside the order of the windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from hybridrec.data.effort import Effort
from hybridrec.data.shuffle import Borders, Shuffle


@dataclass(frozen=True)
class Cuts:
    """How a rank's rows become batches. `world` > 1 here means that ranks share each batch of `batch_size` rows."""

    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world: int = 1


@dataclass(frozen=True)
class Reading:
    """How groups are read for one schema: columns, chunks and their borders, decoded bytes per row."""

    columns: list[str]
    chunk_rows: int
    row_bytes: float
    borders: Borders
    open: Callable[[int, bool], Iterator[pa.RecordBatch]]  # a group; whether to put all threads on its columns
    absent: Callable[[int], frozenset[str]]
    group_rows: int  # of the largest group
    lane_bytes: int  # what an open group takes: a page and a read buffer of each column

    def plan(self, cuts: Cuts, shuffle: Shuffle | None, effort: Effort, last_row: Callable[[int], int]) -> Plan:
        """Plan ahead a row group for each thread; of windows, two beside the one being packed, or what memory holds."""
        if shuffle is None:
            ahead = effort.threads * self.group_rows + effort.prefetch * cuts.batch_size
        else:
            ahead = max(2 * (shuffle.rows or 0) + cuts.batch_size, int(effort.memory / self.row_bytes))
        return Plan(self, last_row, cuts, ahead)


@dataclass(frozen=True)
class Plan:
    """One epoch's reading: up to which row each group is needed, how rows are cut, how far windows may be ahead."""

    reading: Reading
    last_row: Callable[[int], int]
    cuts: Cuts
    ahead_rows: int  # how far the windows planned may run ahead of those let go
