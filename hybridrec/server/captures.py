"""Captures of a server: the rows of a table as they were at one moment, read in chunks while training goes on."""

from __future__ import annotations

import numpy as np

from hybridrec import _native
from hybridrec.server.protocol import Refusal
from hybridrec.server.rows import RowArrays, Rows

MOST = 4096  # captures that are open at once: a checkpoint has one of each table


class Capture:
    """One capture. Chunks are read in order; the last one may be asked for again.

    With `cut`, the clock after the last step that counts, it is as of that step although lookups of later ones were
    answered: rows that only those have seen, which are as they were born, are left out, and none was seen later.
    """

    def __init__(self, rows: Rows, cut: int | None = None) -> None:
        self._rows, self._native, self.rule, self._cut = rows, _native.Capture(rows.native), rows.rule, cut
        self.clock = rows.native.clock if cut is None else cut
        self.most, self.sketch = self._native.slots, rows.native.sketch()
        self._next, self._last = 0, (-1, _no_rows(rows))

    def chunk(self, first: int, size: int) -> RowArrays:
        """The rows in slots [first, first + size)."""
        if first == self._last[0]:
            return self._last[1]
        if first != self._next:
            raise Refusal("value", f"a capture is read in order: slot {self._next} comes next, not {first}")
        found = self._read(self._native.used(first, first + size))
        self._last, self._next = (first, found if self._cut is None else self._as_of(found, self._cut)), first + size
        return self._last[1]

    def _as_of(self, data: RowArrays, cut: int) -> RowArrays:
        assert data.touched is not None
        later = np.flatnonzero(data.touched >= cut)
        if not len(later):
            return data
        kept = np.ones(len(data.ids), bool)
        kept[later] = ~self._rows.newborn(data.at(later), self.rule)
        return data._replace(touched=np.minimum(data.touched, max(cut - 1, 0))).at(kept)

    def _read(self, slots: np.ndarray) -> RowArrays:
        rows, n = self._rows, len(slots)
        values, records = np.empty((n, rows.dim), rows.bits), np.empty((3, n), np.int64)
        columns = self.rule.state if self.rule else ()
        state = [np.empty((n, column.width(rows.dim)), np.float32) for column in columns]
        where = [record.ctypes.data for record in records]
        self._native.read(slots.ctypes.data, n, *where, values.ctypes.data, [part.ctypes.data for part in state])
        named = {c.name: part[:, 0] if c.per_row else part for c, part in zip(columns, state, strict=True)}
        return RowArrays(records[0], values, named, records[1], records[2] if rows.declaration.counted else None)


class Captures:
    """Those that are open, by number."""

    def __init__(self) -> None:
        self._open: dict[int, Capture] = {}
        self._number = 0

    def open(self, rows: Rows, cut: int | None) -> tuple[int, Capture]:
        """A new one of this table."""
        if len(self._open) >= MOST:
            raise Refusal("busy", f"{MOST} captures are open; close some before opening more")
        self._number += 1
        self._open[self._number] = made = Capture(rows, cut)
        return self._number, made

    def get(self, number: int) -> Capture:
        if number not in self._open:
            raise Refusal("value", f"there is no capture {number}; it was closed, or the server has started anew")
        return self._open[number]

    def close(self, number: int) -> None:
        self._open.pop(number, None)

    def close_all(self) -> None:
        self._open.clear()

    def __len__(self) -> int:
        return len(self._open)


def _no_rows(rows: Rows) -> RowArrays:
    return RowArrays(np.empty(0, np.int64), np.empty((0, rows.dim), rows.bits), {})
