"""Windows cut into batches: which windows a batch needs, which batches can be packed, which windows can go."""

from __future__ import annotations

import heapq

from hybridrec.data.account import Account
from hybridrec.data.assembly import Cut, Decoding, Part
from hybridrec.data.partition import slice_of_batch
from hybridrec.data.reading import Cuts


class Cutter:
    """Cuts windows into batches in the order in which they come, and lets each go after the last batch that needs it.

    The lock of the loader guards it.
    """

    def __init__(self, cuts: Cuts, account: Account) -> None:
        self.count = 0  # batches cut
        self.rows = 0  # of windows that were not let go
        self._cuts, self._account = cuts, account
        self._open: list[Part] = []  # the batch being cut
        self._open_rows = 0
        self._packable: list[tuple[int, Cut]] = []

    @property
    def first(self) -> int | None:
        """The number of the batch that `take` gives: the earliest of those whose windows are all decoded."""
        return self._packable[0][0] if self._packable else None

    def add(self, window: Decoding) -> None:
        """The next window; it has yet to be decoded."""
        self.rows += window.window.rows
        at = window.done
        while at < window.window.rows:
            stop = min(window.window.rows, at + self._cuts.batch_size - self._open_rows)
            self._open.append((window, at, stop))
            window.unpacked += 1
            self._open_rows += stop - at
            at = stop
            if self._open_rows == self._cuts.batch_size:
                self._close_cut()

    def end(self, whole: bool) -> None:
        """No window comes any more; the last batch is shorter, or left out where windows are missing."""
        if self._open_rows and whole and not self._cuts.drop_last:
            self._close_cut()
        for window, _, _ in self._open:
            self._release(window)
        self._open, self._open_rows = [], 0

    def decoded(self, window: Decoding) -> None:
        """All pieces of a window are there."""
        for cut in window.waiting:
            cut.undecoded -= 1
            if cut.undecoded == 0:
                heapq.heappush(self._packable, (cut.number, cut))
        window.waiting.clear()
        if window.unpacked == 0:
            self._free(window)

    def take(self) -> Cut:
        return heapq.heappop(self._packable)[1]

    def packed(self, cut: Cut) -> None:
        for window, _, _ in cut.parts:
            self._release(window)

    def clear(self) -> None:
        self._open.clear()
        self._packable.clear()

    def _close_cut(self) -> None:
        first, last = slice_of_batch(self._open_rows, self._cuts.rank, self._cuts.world)
        parts, at = [], 0
        for window, start, stop in self._open:  # keep this rank's slice; the rest is another's
            low, high = max(start, start + first - at), min(stop, start + last - at)
            at += stop - start
            if low < high:
                parts.append((window, low, high))
            else:
                self._release(window)
        cut = Cut(self.count, parts)
        self.count += 1
        self._open, self._open_rows = [], 0
        for window, _, _ in parts:
            if window.undecoded:
                cut.undecoded += 1
                window.waiting.append(cut)
        if not cut.undecoded:
            heapq.heappush(self._packable, (cut.number, cut))

    def _release(self, window: Decoding) -> None:
        """One batch fewer needs this window."""
        window.unpacked -= 1
        if window.unpacked == 0 and window.undecoded == 0:
            self._free(window)

    def _free(self, window: Decoding) -> None:
        self._account.free(window)
        self.rows -= window.window.rows
        window.pieces, window.order = [], None
