"""In which order a rank reads its rows: chunks of several row groups, permuted in windows of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import attrgetter

import numpy as np

from hybridrec import _native
from hybridrec.data.partition import Span, count, cut

Borders = Callable[[int], np.ndarray]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Shuffle:
    """How rows are mixed: the seed, the rows permuted together, and how many row groups feed them.

    More ``rows`` mix better and take more memory: a window is decoded before its first batch leaves.
    ``rows=None`` is one window over everything, a true permutation, for data that fits. More ``lanes`` draw
    each window from more row groups and keep as many open. Choose rows >= lanes x chunk rows, or a window
    closes before every lane has given to it.

    >>> Shuffle(seed=1, rows=65536)
    Shuffle(seed=1, rows=65536, lanes=8)
    """

    seed: int
    rows: int | None
    lanes: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _WORD:
            raise ValueError(f"seed={self.seed}: a shuffle seed is an integer from 0 to 2**64 - 1")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows={self.rows}: a shuffle window has at least 1 row; None permutes all rows at once")
        if self.lanes < 1:
            raise ValueError(f"lanes={self.lanes}: a shuffle reads from at least 1 row group at a time")


@dataclass(frozen=True, slots=True)
class Window:
    """Spans read together: laid end to end, then permuted by ``key``, or in order where key is None.

    >>> Window((Span(0, 0, 3), Span(4, 0, 2)), key=None).order().tolist()
    [0, 1, 2, 3, 4]
    """

    spans: tuple[Span, ...]
    key: int | None
    rows: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", count(self.spans))

    def order(self) -> np.ndarray:
        """Which row of the laid-out spans comes at each place of the window, int64 [rows]."""
        return np.arange(self.rows) if self.key is None else permutation(self.rows, self.key)


def windows(
    spans: Sequence[Span], borders: Borders, shuffle: Shuffle | None, epoch: int, rank: int, era: int
) -> Iterator[Window]:
    """The windows of one rank in reading order, lazily; every span handed out lies inside one chunk.

    ``borders(group)`` gives the group's chunk borders ``[0, c, 2c, ..., rows]``. Row groups are permuted by
    (seed, epoch, era) and dealt to lanes; each lane in turn gives its next chunk, and one whose group ends
    takes the next group. A window closes once it holds ``shuffle.rows`` rows. So a group is decoded once,
    front to back, and memory is bounded by the window; rows far apart in one group stay in different windows.
    Batch size and threads play no part.

    >>> spans, halves = [Span(0, 0, 4), Span(1, 0, 4)], lambda group: np.array([0, 2, 4])
    >>> [[(s.group, s.start) for s in w.spans] for w in windows(spans, halves, Shuffle(0, rows=4), 0, 0, 0)]
    [[(0, 0), (1, 0)], [(0, 2), (1, 2)]]
    """
    if shuffle is None:
        for span in spans:
            yield from (Window((piece,), None) for piece in cut(span, borders(span.group)))
        return
    runs = [tuple(run) for _, run in groupby((span for span in spans if span.rows), attrgetter("group"))]
    order = permutation(len(runs), mix(shuffle.seed, epoch, era)) if shuffle.rows else range(len(runs))
    lanes = shuffle.lanes if shuffle.rows else 1
    held: list[Span] = []
    rows = number = 0
    for piece in _deal((_chunks(runs[index], borders) for index in order), lanes):
        held.append(piece)
        rows += piece.rows
        if shuffle.rows and rows >= shuffle.rows:
            yield Window(tuple(held), mix(shuffle.seed, epoch, era, rank, number))
            held, rows, number = [], 0, number + 1
    if held:
        yield Window(tuple(held), mix(shuffle.seed, epoch, era, rank, number))


def skip(windows: Iterable[Window], rows: int) -> Iterator[tuple[Window, int]]:
    """The windows still to be read after ``rows`` rows, each with the number of its own rows already read.

    >>> two = [Window((Span(group, 0, 3),), key=None) for group in range(2)]
    >>> [(window.rows, read) for window, read in skip(two, 4)]
    [(3, 1)]
    """
    for window in windows:
        if rows < window.rows:
            yield window, rows
        rows = max(0, rows - window.rows)


def permutation(n: int, key: int) -> np.ndarray:
    """A permutation of 0..n-1 as int64, a function of (n, key) alone on every machine and version.

    Fisher-Yates driven by splitmix64, with bounds by multiply and shift: a few nanoseconds a row while it
    fits the cache, and a bias below n / 2**32, which no training run can see; numpy's generators promise no
    stable stream.

    >>> permutation(5, key=0).tolist() == permutation_reference(5, key=0).tolist()
    True
    """
    _check_length(n)
    out = np.empty(n, np.int64)
    _native.permutation(n, key, out.ctypes.data)
    return out


def permutation_reference(n: int, key: int) -> np.ndarray:
    """What permutation() computes, in plain Python."""
    _check_length(n)
    out = list(range(n))
    state = key
    for i in range(n - 1, 0, -1):
        state = (state + _GOLDEN) & _WORD
        j = (_finalise(state) >> 32) * (i + 1) >> 32
        out[i], out[j] = out[j], out[i]
    return np.array(out, np.int64)


def mix(*parts: int) -> int:
    """One 64-bit key from several integers; their order and number count.

    >>> len({mix(0, 1), mix(1, 0), mix(0, 1, 0), mix(0)})
    4
    """
    key = len(parts)
    for part in parts:
        key = _finalise(((key ^ part) + _GOLDEN) & _WORD)
    return key


def _finalise(z: int) -> int:
    """splitmix64's output function: every bit of the argument reaches every bit of the result."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)


def _chunks(run: Iterable[Span], borders: Borders) -> Iterator[Span]:
    """The pieces of one group's spans, front to back."""
    return chain.from_iterable(cut(span, borders(span.group)) for span in run)


def _deal(groups: Iterator[Iterator[Span]], lanes: int) -> Iterator[Span]:
    """One piece from each lane in turn; a lane whose group has ended takes the next one in the same turn."""
    open_lanes = deque(islice(groups, lanes))
    while open_lanes:
        lane = open_lanes.popleft()
        piece = next(lane, None)
        if piece is None:
            lane = next(groups, None)
            if lane is not None:
                open_lanes.appendleft(lane)
            continue
        open_lanes.append(lane)
        yield piece


def _check_length(n: int) -> None:
    if not 0 <= n < 1 << 32:
        raise ValueError(
            f"cannot permute {n} rows at once: a window holds fewer than 2**32 rows; set Shuffle(rows=...)"
        )
