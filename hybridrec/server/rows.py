"""Rows: one server's share of one table, in native memory, reached with NumPy arrays.

What `hybridrec.embedding.HashStore` is to tensors, this is to the messages of a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from hybridrec import _native
from hybridrec.server.declaration import BITS, Column, Declaration, Rule
from hybridrec.server.protocol import Refusal

MISSING = np.uint32(0xFFFFFFFF)


class RowArrays(NamedTuple):
    """Rows with all that belongs to them; `touched` and `counts` where they are known."""

    ids: np.ndarray  # int64 [n]
    rows: np.ndarray  # [n, dim], in the table's type
    state: Mapping[str, np.ndarray]  # float32 [n, dim] or [n]
    touched: np.ndarray | None = None  # int64 [n]
    counts: np.ndarray | None = None  # int64 [n]

    def at(self, places: np.ndarray) -> RowArrays:
        """Some of them, by position or by a mask."""
        state = {name: values[places] for name, values in self.state.items()}
        scores = [None if part is None else part[places] for part in (self.touched, self.counts)]
        return RowArrays(self.ids[places], self.rows[places], state, *scores)


class Rows:
    """The rows of one table that one server has.

    Of a fixed table these are the ones that training has seen, or somebody has loaded. The others have their initial
    values, which are drawn when they are asked for: so a table may be declared far larger than what is ever used of it.

    >>> rows = Rows(Declaration("user", 4, 1000), servers=1)
    >>> rows.admit(np.array([7, 9]))[0]
    array([0, 1], dtype=uint32)
    >>> rows.ids()
    array([7, 9])
    """

    def __init__(self, declaration: Declaration, servers: int, native: _native.HashTable | None = None) -> None:
        """With `native` they are those of a table that exists, such as one on disk."""
        self.declaration = declaration
        self.capacity = declaration.capacity_of(servers)
        made = _native.HashTable(declaration.spec(), *declaration.policy(servers)) if native is None else native
        self.native: _native.HashTable = made
        self.rule = rule_on_disk(self.native)
        self.nan_rows = 0
        self.bits = BITS[declaration.dtype]

    @property
    def on_disk(self) -> bool:
        return isinstance(self.native, _native.DiskTable)

    @property
    def counts_on_disk(self) -> bool:
        """Whether lookups count ids, and what they have counted survives the process."""
        return self.on_disk and self.declaration.counting

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def dim(self) -> int:
        return self.declaration.dim

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.rule.state if self.rule else ()

    @property
    def fixed(self) -> bool:
        return self.declaration.rows is not None

    def __len__(self) -> int:
        return len(self.native.live()) if self.declaration.eviction == "ttl" else len(self.native)

    # -- ids to slots -------------------------------------------------------------------------------------

    def check(self, ids: np.ndarray) -> None:
        """Refuse ids that a fixed table cannot have; trainers know its rows, and what becomes of other ids."""
        rows = self.declaration.rows
        if rows is not None and len(ids) and not 0 <= ids.min() <= ids.max() < rows:
            beyond = ids[(ids < 0) | (ids >= rows)][0]
            raise Refusal("value", f"table {self.name!r} has rows 0 … {rows - 1}, and there is none of id {beyond}")

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Slots uint32 [n], MISSING where there is no row; changes nothing."""
        slots = np.empty(len(ids), np.uint32)
        self.native.find(ids.ctypes.data, len(ids), slots.ctypes.data)
        return slots

    def live(self, ids: np.ndarray) -> np.ndarray:
        """Which of these ids have a row, bool [n]."""
        self.check(ids)
        return np.ones(len(ids), bool) if self.fixed else self.find(ids) != MISSING

    def admit(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slots of ids in a training lookup, which counts them, and their vectors float32 [n, dim]."""
        self.check(ids)
        slots, vectors = np.empty(len(ids), np.uint32), np.empty((len(ids), self.dim), np.float32)
        try:
            self.native.admit(ids.ctypes.data, len(ids), slots.ctypes.data)
        except ValueError as error:
            raise full(self.name, str(error)) from None
        self.native.gather(slots.ctypes.data, len(slots), vectors.ctypes.data)
        return slots, vectors

    def _place(self, ids: np.ndarray) -> np.ndarray:
        slots, there = np.empty(len(ids), np.uint32), self.find(ids)
        there = np.ascontiguousarray(there[there != MISSING])
        touched, counts = self._scores(there)
        try:
            self.native.put(ids.ctypes.data, len(ids), slots.ctypes.data)
        except ValueError as error:
            self._set_scores(there, touched, counts)  # which were touched, lest they make room for the others
            raise full(self.name, str(error)) from None
        return slots

    def _scores(self, slots: np.ndarray) -> np.ndarray:
        scores = np.zeros((2, len(slots)), np.int64)
        self.native.scores(slots.ctypes.data, len(slots), scores[0].ctypes.data, scores[1].ctypes.data)
        return scores

    def _set_scores(self, slots: np.ndarray, touched: np.ndarray, counts: np.ndarray) -> None:
        self.native.set_scores(slots.ctypes.data, len(slots), touched.ctypes.data, counts.ctypes.data)

    # -- optimizer state ----------------------------------------------------------------------------------

    def attach(self, rule: Rule | None) -> None:
        """Make room for the state of this rule beside every row, at its fill; what was there is dropped."""
        columns = rule.state if rule else ()
        if isinstance(self.native, _native.DiskTable):
            self.native.set_rule(json.dumps(rule.to_json()) if rule else "")
        self.native.attach([column.width(self.dim) for column in columns], [column.fill for column in columns])
        self.rule = rule

    # -- all rows -----------------------------------------------------------------------------------------

    def ids(self) -> np.ndarray:
        """Those that have a row, ascending."""
        slots = self.native.live()
        ids = np.empty(len(slots), np.int64)
        self.native.ids(slots.ctypes.data, len(slots), ids.ctypes.data)
        return ids

    def read(self, ids: np.ndarray) -> RowArrays:
        """The rows of these ids, which must exist."""
        self.check(ids)
        slots = self.find(ids)
        lost = slots == MISSING
        if self.fixed and lost.any():
            made = self._initial(ids)
            for to, values in zip(_columns(made), _columns(self.read(ids[~lost])), strict=True):
                to[~lost] = values
            return made
        if lost.any():
            raise Refusal("value", f"table {self.name!r} has no row for id {ids[lost][0]}; ids() has those it holds")
        vectors = np.empty((len(ids), self.dim), np.float32)
        self.native.gather(slots.ctypes.data, len(slots), vectors.ctypes.data)
        state = {}
        for place, column in enumerate(self.columns):
            values = np.empty((len(ids), column.width(self.dim)), np.float32)
            self.native.gather_state(place, slots.ctypes.data, len(slots), values.ctypes.data)
            state[column.name] = values[:, 0] if column.per_row else values
        touched, counts = self._scores(slots)
        return RowArrays(ids, self._narrow(vectors), state, touched, counts if self.declaration.counted else None)

    def newborn(self, data: RowArrays, rule: Rule | None) -> np.ndarray:
        """Which of these rows, with the state of a rule, are as they were before any update, bool [n]."""
        whole = np.dtype(f"<u{self.bits.itemsize}")  # so that equal bits are equal
        same = (data.rows.view(whole) == self.declaration.initial(data.ids).view(whole)).all(axis=1)
        for column in rule.state if rule else ():
            same &= (data.state[column.name].reshape(len(same), -1) == np.float32(column.fill)).all(axis=1)
        return same

    def _initial(self, ids: np.ndarray) -> RowArrays:
        """The rows of a fixed table before any update."""
        shapes = {c: (len(ids),) if c.per_row else (len(ids), self.dim) for c in self.columns}
        state = {c.name: np.full(shape, c.fill, np.float32) for c, shape in shapes.items()}
        return RowArrays(ids.copy(), self.declaration.initial(ids), state, np.zeros(len(ids), np.int64))

    def load(self, data: RowArrays) -> None:
        """Overwrite rows, or add them; state that is not given goes back to its fill."""
        self.check(data.ids)
        with self.change():
            self._load(data)

    @contextmanager
    def change(self, tag: tuple[int, int, int] | None = None) -> Iterator[None]:
        """What is done here is done as a whole, where rows are on disk; they keep the tag with it."""
        if not isinstance(self.native, _native.DiskTable):
            yield
            return
        self.native.begin()
        try:
            yield
        except BaseException:
            self.native.abort()
            raise
        self.native.done(tag)

    def _load(self, data: RowArrays) -> None:
        slots, n = self._place(data.ids), len(data.ids)
        values = np.ascontiguousarray(self.wide(data.rows))
        self.native.scatter(slots.ctypes.data, n, values.ctypes.data)
        for place, column in enumerate(self.columns):
            given = data.state.get(column.name)
            given = np.full((n, column.width(self.dim)), column.fill, np.float32) if given is None else given
            given = np.ascontiguousarray(given, np.float32)
            self.native.scatter_state(place, slots.ctypes.data, n, given.ctypes.data)
        touched = (
            np.full(n, self.native.clock, np.int64) if data.touched is None else np.ascontiguousarray(data.touched)
        )
        counts = np.ones(n, np.int64) if data.counts is None else np.ascontiguousarray(data.counts)
        self._set_scores(slots, touched, counts)

    def wide(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the type of the table as float32."""
        if self.declaration.dtype == "bfloat16":
            return (rows.astype(np.uint32) << 16).view(np.float32)
        return rows.astype(np.float32)

    def _narrow(self, rows: np.ndarray) -> np.ndarray:
        """float32 numbers that came from rows, in the type of rows: nothing is rounded."""
        if self.declaration.dtype == "bfloat16":
            return (rows.view(np.uint32) >> 16).astype(np.uint16)
        return rows.astype(self.bits, copy=False)

    def erase(self, ids: np.ndarray) -> None:
        self.check(ids)
        self.native.erase(ids.ctypes.data, len(ids))

    def clear(self) -> None:
        self.native.clear()

    # -- what another held ----------------------------------------------------------------------------------

    def empty_for(self, most: int, rule: Rule | None) -> None:
        """Hold nothing, with room for so many rows that are to be appended."""
        if not 0 <= most <= self.capacity:
            raise full(self.name, f"holds {self.capacity} rows on this server, and {most} are to be restored")
        if rule != self.rule:
            self.attach(rule)
        self.native.reserve_empty(most)

    def append(self, data: RowArrays) -> None:
        """Add rows that are not there, after those that are."""
        self.check(data.ids)
        first, n = len(self.native), len(data.ids)
        touched = np.full(n, self.native.clock, np.int64) if data.touched is None else data.touched
        of_counts = 0 if data.counts is None else data.counts.ctypes.data  # 1 each
        twice = self.native.append(data.ids.ctypes.data, touched.ctypes.data, of_counts, n)
        if twice >= 0:
            raise Refusal("value", f"table {self.name!r}: id {data.ids[twice]} is there twice; each may come once")
        given = {name: np.ascontiguousarray(values, np.float32) for name, values in data.state.items()}
        states = [given[c.name].ctypes.data if c.name in given else 0 for c in self.columns]
        rows = np.ascontiguousarray(data.rows, self.bits)
        self.native.write(first, n, rows.ctypes.data, states)

    def filled(self) -> None:
        """All rows that are to be appended are there."""
        self.native.whole()

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        return {**self.native.counters(), "nan_rows": self.nan_rows}

    def figures(self) -> dict[str, int]:
        """Its size and what happened so far."""
        size = {"rows": len(self.native), "capacity": self.capacity, "bytes": self.native.memory()["allocated"]}
        return {**size, **self.counters()}

    def memory(self) -> dict[str, float]:
        return {**self.native.memory(), **self.native.overhead()}


def _columns(data: RowArrays) -> list[np.ndarray]:
    """All that belongs to rows."""
    scores = [part for part in (data.touched, data.counts) if part is not None]
    return [data.ids, data.rows, *data.state.values(), *scores]


def rule_on_disk(native: _native.HashTable) -> Rule | None:
    """The rule whose state lies beside the rows of a table that was opened."""
    text = native.rule if isinstance(native, _native.DiskTable) else ""
    return Rule.of(json.loads(text)) if text else None


def full(table: str, error: str) -> Refusal:
    """What is said where a step needs more rows at once than the table may hold."""
    what = error.removeprefix("table ")
    return Refusal("value", f"table {table!r} {what}; give it a larger capacity, or take smaller batches")
