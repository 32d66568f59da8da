"""RowCache: which rows are hot, and where each one lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from hybridrec.ops.constants import constants

MOST_ROWS = 2**31 - 1  # the directory is int32
LONG_AGO = -(2**30)  # the stamp of a slot that nobody has used


class Of(NamedTuple):
    """The places of the numbers that last, and of those of one admission."""

    NOW: int = 0  # admissions so far
    HAND: int = 1  # the block of slots where the hand is
    IDS: int = 2  # that had a row
    COLD: int = 3  # of those, whose row was not hot
    MOVED: int = 4  # rows that came, and as many went
    REFUSED: int = 5  # admissions
    LACK: int = 6  # slots that the largest of those would have needed beside all there are
    LANDED: int = 7  # the last admission whose rows may go, with all before it
    LASTING: int = 8  # numbers

    WANTED: int = 0  # rows on the list
    TAKEN: int = 1  # victims so far
    FROM: int = 2  # the first block of this go of the hand,
    WINDOW: int = 3  # how many it looks at,
    BEFORE: int = 4  # victims before it,
    LEFT: int = 5  # and how many it is to find
    REFUSES: int = 6  # whether this admission is refused
    IDLE: int = 7  # `LANDED` as it was when this admission began
    PASSING: int = 8  # numbers

    CLAIMED: int = -(2**31)  # in the directory: a cold row that is on the list


of = constants(Of())


@dataclass(frozen=True)
class Sizes:
    """How the work is cut."""

    ids: int = 1024  # of a program
    block: int = 1024  # slots that the hand passes at a time
    span: int = 2  # slots that it looks at first, for each victim
    sums: int = 1024  # blocks that are added up at a time
    programs: int = 264  # that go round a list
    movers: int = 64  # of those that exchange rows: what they have on its way fills the link
    numbers: int = 2048  # words of rows that a program has in hand


class Column(NamedTuple):
    """Rows, or one column of their state: [slots, width] on the device, [rows - slots, width] on the host.

    Where the host has another type, rows are packed on their way: float32 ones, as packing.py has it.
    """

    hot: Tensor
    cold: Tensor

    @property
    def packs(self) -> bool:
        return self.hot.dtype != self.cold.dtype


class Admitted(NamedTuple):
    """The slots of a batch; they are its own until `land` is told the number."""

    slots: Tensor  # int64 [N]
    number: Tensor  # int64 [1], on the device


class Figures(NamedTuple):
    """What happened so far."""

    admissions: int
    ids: int
    cold_ids: int
    moved: int
    bytes_each_way: int
    refused: int
    lacking: int

    @property
    def hit_rate(self) -> float:
        """The share of ids whose row was hot when they came; 1 where none has come.

        >>> Figures(3, 100, 25, 20, 640, 0, 0).hit_rate
        0.75
        """
        return 1 - self.cold_ids / max(self.ids, 1)


@dataclass(eq=False)
class RowCache:
    """Rows 0 … n - 1, some of them hot; README.md beside this file has the arrays.

    >>> cache = RowCache.make(rows=10, slots=4, device=torch.device("cpu"))
    >>> cache.columns.append(Column(torch.zeros(4, 8), torch.zeros(6, 8)))
    >>> cache.row_bytes, cache.directory.tolist()
    (32, [0, 1, 2, 3, -1, -2, -3, -4, -5, -6])
    """

    directory: Tensor  # int32 [rows]
    owner: Tensor  # int32 [slots]
    stamp: Tensor  # int32 [slots]
    passed: Tensor  # int32 [blocks]
    lasting: Tensor  # int64 [LASTING]
    passing: Tensor  # int64 [PASSING]
    sizes: Sizes
    columns: list[Column] = field(default_factory=list)  # rows, then state
    key: int = 0  # what the rounding of rows that are packed is drawn by

    @classmethod
    def make(cls, rows: int, slots: int, device: torch.device, sizes: Sizes = Sizes()) -> RowCache:  # noqa: B008
        """So many rows, the first of them hot; columns are for the caller to add."""
        if not 1 <= slots <= rows <= MOST_ROWS:
            raise ValueError(
                f"{rows:,} rows with {slots:,} slots for hot ones: there must be 1 … {MOST_ROWS:,} rows and 1 slot for "
                "them or more, but no more than rows"
            )
        directory = torch.arange(rows, dtype=torch.int32, device=device)
        directory[slots:].neg_().add_(slots - 1)  # in place: a card may have no room for it twice
        return cls(
            directory=directory,
            owner=directory[:slots].clone(),
            stamp=torch.full((slots,), LONG_AGO, dtype=torch.int32, device=device),
            passed=torch.zeros(-(-slots // sizes.block), dtype=torch.int32, device=device),
            lasting=torch.zeros(of.LASTING, dtype=torch.int64, device=device),
            passing=torch.zeros(of.PASSING, dtype=torch.int64, device=device),
            sizes=sizes,
        )

    @property
    def slots(self) -> int:
        return len(self.owner)

    @property
    def places(self) -> int:
        """Room for cold rows, all of it in use."""
        return len(self.directory) - self.slots

    @property
    def row_bytes(self) -> int:
        """Bytes of a hot row with its state."""
        return sum(column.hot[:1].nbytes for column in self.columns)

    @property
    def cold_bytes(self) -> int:
        """Bytes of a cold row with its state, which are those that move."""
        return sum(cold.shape[1:].numel() * cold.dtype.itemsize for _, cold in self.columns)  # there may be none

    def figures(self) -> Figures:
        """What happened so far; waits for the device."""
        now, _, ids, cold, moved, refused, lack, _ = self.lasting.tolist()
        return Figures(now, ids, cold, moved, moved * self.cold_bytes, refused, lack)
