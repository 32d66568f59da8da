"""Which rank reads which rows: spans of row groups, cut by counting; the same answer on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

_SET_BITS = np.array([byte.bit_count() for byte in range(256)], np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``[start, stop)`` of one row group, less those whose bit in ``keep`` is 0.

    ``keep`` is ``np.packbits(mask, bitorder="little").tobytes()`` over ``start..stop``, or None for all rows.
    One bit per row costs memory only where rows were filtered or half a window was read; everything else is
    three integers. ``rows`` is counted once, at construction.

    >>> Span(0, 10, 14), Span(0, 10, 14, keep=bytes([0b1010])).indices().tolist()
    (Span(group=0, start=10, stop=14, rows=4), [11, 13])
    """

    group: int
    start: int
    stop: int
    keep: bytes | None = field(default=None, repr=False)
    rows: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        length = self.stop - self.start
        assert 0 <= self.start <= self.stop, f"span {self.start}..{self.stop} runs backwards"
        rows = length
        if self.keep is not None:
            assert len(self.keep) == (length + 7) // 8, f"{len(self.keep)} mask bytes for {length} rows"
            rows = int.from_bytes(self.keep, "little").bit_count()
        object.__setattr__(self, "rows", rows)

    @classmethod
    def of_mask(cls, group: int, mask: np.ndarray, start: int = 0) -> Span:
        """The rows ``start + i`` with ``mask[i]``, trimmed to them, without a mask where none is needed."""
        if not mask.any():
            return cls(group, start, start)
        first, last = int(mask.argmax()), len(mask) - int(mask[::-1].argmax())
        mask = mask[first:last]
        keep = None if mask.all() else np.packbits(mask, bitorder="little").tobytes()
        return cls(group, start + first, start + last, keep)

    def mask(self, start: int, stop: int) -> np.ndarray:
        """Which of the group's rows ``start..stop``, all inside the span, are kept (bool)."""
        if self.keep is None:
            return np.ones(stop - start, bool)
        first = (start - self.start) // 8
        packed = np.frombuffer(self.keep, np.uint8)[first : (stop - self.start + 7) // 8]
        bits = np.unpackbits(packed, bitorder="little").view(bool)
        skip = start - self.start - 8 * first
        return bits[skip : skip + stop - start]

    def indices(self) -> np.ndarray:
        """The kept rows in the group's own numbering, int64, ascending."""
        if self.keep is None:
            return np.arange(self.start, self.stop, dtype=np.int64)
        return np.flatnonzero(self.mask(self.start, self.stop)).astype(np.int64, copy=False) + self.start

    def between(self, start: int, stop: int) -> Span:
        """The part of the span among the group's rows ``start..stop``."""
        start, stop = max(start, self.start), min(stop, self.stop)
        if start >= stop:
            return Span(self.group, self.start, self.start)
        if self.keep is None:
            return Span(self.group, start, stop)
        return Span.of_mask(self.group, self.mask(start, stop), start)

    def row(self, position: int) -> int:
        """The group's row number of the kept row at ``position``, 0 <= position < rows."""
        if self.keep is None:
            return self.start + position
        packed = np.frombuffer(self.keep, np.uint8)
        ends = np.cumsum(_SET_BITS[packed])  # counts bytes, so that a cut never unpacks the whole mask
        byte = int(np.searchsorted(ends, position, side="right"))
        rank = position - int(ends[byte] - _SET_BITS[packed[byte]])
        return (
            self.start + 8 * byte + int(np.flatnonzero(np.unpackbits(packed[byte : byte + 1], bitorder="little"))[rank])
        )


def count(spans: Sequence[Span]) -> int:
    """Rows in all spans together.

    >>> count([Span(0, 0, 5), Span(1, 2, 4)])
    7
    """
    return sum(span.rows for span in spans)


def take(spans: Sequence[Span], start: int, stop: int | None = None) -> list[Span]:
    """Positions ``[start, stop)`` of the sequence of all kept rows, as spans; nothing lies beyond the end.

    Only the two spans at the ends are cut (exactly, also inside a mask); those between are handed on as they
    are. So the price is one pass over the counts, and a row group at a cut is read by the owners of both
    sides.

    >>> take([Span(0, 0, 5), Span(1, 0, 5)], 3, 7)
    [Span(group=0, start=3, stop=5, rows=2), Span(group=1, start=0, stop=2, rows=2)]
    """
    if start < 0:
        raise ValueError(f"take() from position {start}: positions count from 0")
    ends = _ends(spans)
    return _take(spans, ends, start, int(ends[-1]) if stop is None else stop)


def share(spans: Sequence[Span], rank: int, world: int) -> list[Span]:
    """The rows of one rank of ``world``: an unbroken stretch of the sequence, N // world rows or one more.

    Shares differ by at most one row, so ranks finish together; for that, up to world - 1 row groups are cut
    and decoded by two ranks (dealing whole groups would decode each once but leave shares as uneven as the
    groups). A rank keeps its stretch over epochs, which suits local caches; the shuffle mixes inside a share.

    >>> [share([Span(0, 0, 5)], rank, 2) for rank in range(2)]
    [[Span(group=0, start=0, stop=2, rows=2)], [Span(group=0, start=2, stop=5, rows=3)]]
    """
    _check_rank(rank, world)
    ends = _ends(spans)
    return _take(spans, ends, *slice_of_batch(int(ends[-1]), rank, world))


def shares(spans: Sequence[Span], world: int) -> Iterator[list[Span]]:
    """``share(spans, rank, world)`` for every rank in turn, counting the spans only once."""
    _check_rank(0, world)
    ends = _ends(spans)
    for rank in range(world):
        yield _take(spans, ends, *slice_of_batch(int(ends[-1]), rank, world))


def slice_of_batch(length: int, rank: int, world: int) -> tuple[int, int]:
    """The rows ``[start, stop)`` of a global batch of ``length`` rows that belong to one rank; may be empty.

    Balanced to one row for short last batches too, at the price of borders that move with the length.

    >>> [slice_of_batch(10, rank, 4) for rank in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    _check_rank(rank, world)
    return length * rank // world, length * (rank + 1) // world


def batch_count(rows: int, batch_size: int, drop_last: bool = False) -> int:
    """Batches in ``rows`` rows; a short last one counts unless it is dropped.

    >>> batch_count(10, 4), batch_count(10, 4, drop_last=True)
    (3, 2)
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: a batch has at least 1 row")
    return rows // batch_size if drop_last else -(-rows // batch_size)


def steps(
    rows: int,
    world: int,
    batch_size: int,
    *,
    by: Literal["rows", "batch"] = "rows",
    uneven: Literal["empty", "stop"] = "empty",
    drop_last: bool = False,
) -> int:
    """Steps that every rank makes over ``rows`` rows in all, known to each without asking the others.

    ``uneven="empty"`` uses every row, and ranks that are done early yield empty batches; ``"stop"`` ends with
    the first rank that runs dry: no empty batches, but up to one batch per rank is left unread. By batch
    (``batch_size`` is then the global one) ranks end together whatever the policy.

    >>> steps(21, world=2, batch_size=10), steps(21, world=2, batch_size=10, uneven="stop")
    (2, 1)
    """
    _check_rank(0, world)
    if by not in ("rows", "batch"):
        raise ValueError(f"by={by!r}: choose 'rows' or 'batch'")
    if uneven not in ("empty", "stop"):
        raise ValueError(f"uneven={uneven!r}: choose 'empty' (every row once) or 'stop' (stop together)")
    if by == "batch":
        return batch_count(rows, batch_size, drop_last)
    largest, smallest = -(-rows // world), rows // world
    return batch_count(largest if uneven == "empty" else smallest, batch_size, drop_last)


def cut(span: Span, borders: np.ndarray) -> Iterator[Span]:
    """The span in pieces inside one chunk each; borders ascend from 0 to the rows of the group.

    Lazy and by slices of the mask: a window of a large group never unpacks more than its own chunks.
    """
    assert borders[-1] >= span.stop, f"{span} reaches beyond the last chunk border of its group"
    inner = borders[np.searchsorted(borders, span.start, "right") : np.searchsorted(borders, span.stop, "left")]
    start = span.start
    for stop in (*inner.tolist(), span.stop):
        piece = span.between(start, stop)
        if piece.rows:
            yield piece
        start = stop


def merge(spans: Sequence[Span]) -> list[Span]:
    """The same rows in order, without empty spans; neighbours in one group are joined where unmasked."""
    merged: list[Span] = []
    for span in spans:
        if not span.rows:
            continue
        last = merged[-1] if merged else span
        touches = last.group == span.group and last.stop == span.start
        if touches and last.keep is None and span.keep is None:
            merged[-1] = Span(span.group, last.start, span.stop)
        else:
            merged.append(span)
    return merged


def _ends(spans: Sequence[Span]) -> np.ndarray:
    """Positions where the spans end, after a leading 0. [len(spans) + 1]"""
    ends = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(np.fromiter((span.rows for span in spans), np.int64, len(spans)), out=ends[1:])
    return ends


def _take(spans: Sequence[Span], ends: np.ndarray, start: int, stop: int) -> list[Span]:
    """take() with the span ends already counted; the two cut spans are found by bisection."""
    stop = min(stop, int(ends[-1]))
    if start >= stop:
        return []
    first = int(np.searchsorted(ends, start, "right")) - 1
    last = int(np.searchsorted(ends, stop, "left")) - 1
    taken = [span for span in spans[first : last + 1] if span.rows]
    # the tail goes first: cutting the head moves the positions of a span that is both
    taken[-1] = _among(taken[-1], 0, stop - int(ends[last]))
    taken[0] = _among(taken[0], start - int(ends[first]), taken[0].rows)
    return taken


def _among(span: Span, start: int, stop: int) -> Span:
    """The kept rows number ``start..stop`` of one span."""
    if start == 0 and stop == span.rows:
        return span
    return span.between(span.row(start), span.row(stop - 1) + 1)


def _check_rank(rank: int, world: int) -> None:
    if world < 1:
        raise ValueError(f"world={world}: a world has at least 1 rank")
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank}: ranks of a world of {world} are 0 to {world - 1}")
