"""RowGroup: tables of a server that are looked up and updated together, each time in one native call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from hybridrec import _native
from hybridrec.server.protocol import Message, malformed
from hybridrec.server.rows import MISSING, Rows, full

NUMBERS = 13  # of a step: those of `hybridrec.optim.rule.RowStep` in the order native code has them, then its step


class Asked(NamedTuple):
    """Ids of some tables of a group, one table after another."""

    tables: np.ndarray  # int64 [n], ascending: numbers of the tables
    counts: np.ndarray  # int64 [n]
    ids: np.ndarray  # int64 [sum of counts]

    @staticmethod
    def of(message: Message, number: int) -> Asked:
        """From the first two buffers of a message to so many tables, or a refusal."""
        pairs, ids = message.array(0, "<i8", -1, 2), message.array(1, "<i8", -1)
        tables, counts = pairs[:, 0], pairs[:, 1]
        if len(tables) and (tables[0] < 0 or tables[-1] >= number or (np.diff(tables) <= 0).any()):
            raise malformed(f"the tables of a message are {tables.tolist()[:9]}; they must ascend below {number}")
        if (counts < 0).any() or (counts > len(ids)).any() or counts.sum() != len(ids):
            raise malformed(f"the ids of a message are {len(ids)}, but its tables have {counts.tolist()[:9]}")
        return Asked(tables, counts, ids)

    def by_table(self) -> Iterator[tuple[int, np.ndarray]]:
        """The number of each table, and its ids."""
        ends = np.cumsum(self.counts)
        for table, start, end in zip(self.tables.tolist(), ends - self.counts, ends, strict=True):
            yield table, self.ids[start:end]

    def floats(self, dims: np.ndarray) -> np.ndarray:
        """Of each table: how many numbers its vectors have."""
        return self.counts * dims[self.tables]

    def starts(self, tables: int) -> list[int]:
        """Where the ids of every table of the group begin, and where the last ones end."""
        sizes = np.zeros(tables, np.int64)
        sizes[self.tables] = self.counts
        return [0, *np.cumsum(sizes).tolist()]


class Found(NamedTuple):
    """Where rows were when they were looked up."""

    asked: Asked
    slots: np.ndarray  # uint32 [ids], MISSING for ids without a row
    removals: np.ndarray  # uint64 [tables of the group]: rows that had gone by then

    def same(self, asked: Asked) -> bool:
        """Whether these are the rows of the same ids."""
        return all(map(np.array_equal, self.asked, asked))


class Gradients(NamedTuple):
    """The gradients of some tables: those of a trainer in one step."""

    asked: Asked
    vectors: np.ndarray  # float32, flat, one table after another
    numbers: np.ndarray  # float64 [n, NUMBERS]
    found: Found | None = None  # where their rows were


class Tag(NamedTuple):
    """Which push an update is, or which lookup has counted its ids: kept with rows on disk, so that it is applied once
    although the server is killed. Of one source, steps ascend."""

    source: int
    session: int
    step: int

    def on(self, rows: Rows) -> bool:
        """Whether a table on disk has it, or a later one."""
        return tagged(rows, self.source, self.session) >= self.step


def tagged(rows: Rows, source: int, session: int) -> int:
    """The last step of a session that a source has applied to a table on disk, -1 for none."""
    return next((step for who, when, step in rows.native.tags() if who == source and when == session), -1)


class RowGroup:
    """Tables in their order.

    >>> from hybridrec.server.declaration import Declaration
    >>> group = RowGroup([Rows(Declaration("user", 2, 10), 1), Rows(Declaration("item", 4, 10), 1)])
    >>> asked = Asked(np.array([1]), np.array([3]), np.array([5, 6, 7]))
    >>> group.lookup(asked, train=True)[0].shape
    (12,)
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = tuple(rows)
        self.dims = np.array([each.dim for each in rows], np.int64)
        self._fixed = [place for place, each in enumerate(rows) if each.fixed]
        count = len(self.rows)
        self._natives = [each.native for each in rows]
        self._set = _native.TableSet(self._natives, [(place, "none", 1) for place in range(count)])
        self._layout = _native.BlockLayout(list(range(count)), [1] * count, [-1] * count)
        self._update = _native.RowUpdate(self._natives)

    def asked(self, message: Message) -> Asked:
        """What a message asks of these tables, or a refusal."""
        asked = Asked.of(message, len(self.rows))
        self.check(asked)
        return asked

    def check(self, asked: Asked) -> None:
        """Refuse ids that no row can be of."""
        if self._fixed:
            for table, ids in asked.by_table():
                self.rows[table].check(ids)

    def lookup(self, asked: Asked, train: bool, tag: Tag | None = None) -> tuple[np.ndarray, Found]:
        """The vectors, float32, flat; zeros for ids without a row. Training lets ids in and counts them.

        Whether or not there is a row of an id of a fixed table, its initial values are known. Tables on disk that count
        keep the tag of a training lookup with what they count: all of it is there after a kill, or nothing.
        """
        counting = [self.rows[table] for table in asked.tables.tolist() if self.rows[table].counts_on_disk]
        if not train or tag is None or not counting:
            return self._look(asked, train)
        if any(tag.on(rows) for rows in counting):
            return self._look_again(asked, tag)
        with ExitStack() as changes:
            for rows in counting:
                changes.enter_context(rows.change(tag))
            return self._look(asked, train)

    def _look_again(self, asked: Asked, tag: Tag) -> tuple[np.ndarray, Found]:
        """The same where the server was killed in the middle of it: some tables have counted, and are only read."""
        parts = []
        for table, ids in asked.by_table():
            one, rows = Asked(np.zeros(1, np.int64), np.array([len(ids)]), ids), self.rows[table]
            done = rows.counts_on_disk and tag.on(rows)
            parts.append(RowGroup([rows]).lookup(one, train=not done, tag=tag))
        vectors, slots = (np.concatenate(each) for each in ([v for v, _ in parts], [found.slots for _, found in parts]))
        return vectors, Found(asked, slots, np.array(self._set.removals(), np.uint64))

    def _look(self, asked: Asked, train: bool) -> tuple[np.ndarray, Found]:
        sizes = asked.floats(self.dims)
        vectors, slots = np.empty(int(sizes.sum()), np.float32), np.empty(len(asked.ids), np.uint32)
        removals = np.empty(len(self.rows), np.uint64)
        starts = asked.starts(len(self.rows))
        places = self._addresses(asked, vectors)
        block = asked.ids.ctypes.data, starts, 0, 0, len(asked.ids)
        fault = self._set.lookup(self._layout, *block, train, slots.ctypes.data, 0, 0, places, [], removals.ctypes.data)
        if fault is not None:
            raise full(self.rows[fault[1]].name, fault[4])
        if self._fixed and not train:
            self._draw(asked, slots, vectors)
        return vectors, Found(asked, slots, removals)

    def _draw(self, asked: Asked, slots: np.ndarray, vectors: np.ndarray) -> None:
        """Give ids of fixed tables that have no row yet their initial values."""
        ends, floats = np.cumsum(asked.counts).tolist(), np.cumsum(asked.floats(self.dims)).tolist()
        for (table, ids), end, stop in zip(asked.by_table(), ends, floats, strict=True):
            rows, absent = self.rows[table], slots[end - len(ids) : end] == MISSING
            if rows.fixed and absent.any():
                mine = vectors[stop - len(ids) * rows.dim : stop].reshape(-1, rows.dim)
                mine[absent] = rows.wide(rows.declaration.initial(ids[absent]))

    def _addresses(self, asked: Asked, vectors: np.ndarray) -> list[int]:
        """Where the vectors of every table are; 0 for those that are not asked for."""
        sizes = asked.floats(self.dims)
        places = np.zeros(len(self.rows), np.int64)
        places[asked.tables] = vectors.ctypes.data + 4 * (np.cumsum(sizes) - sizes)
        return places.tolist()

    def update(self, parts: Sequence[Gradients], tag: Tag | None = None, partly: bool = False) -> np.ndarray:
        """One update with the sum of all gradients, in this order. Of each table: rows updated, not finite, gone.

        Tables on disk keep the tag with the update; those that have it already, where it may be there `partly`, are
        passed over.
        """
        found = [self._where(part) for part in parts]
        pending = [self._pending(part, where) for part, where in zip(parts, found, strict=True)]
        steps, tags = self._steps(parts), []
        if tag is not None:
            tags = [tag if rows.on_disk else None for rows in self.rows]
            for place, rows in enumerate(self.rows):
                if partly and rows.on_disk and tag.on(rows):
                    steps[place] = None  # the server was killed in the middle of this
                elif rows.on_disk and steps[place] is None and rows.rule is not None:
                    steps[place] = _native.RowStep(rows.rule.kind, [0.0] * 12, 0)  # no gradients, but the tag
        done = self._update.apply(pending, steps, False, [], tags)
        result = np.zeros((len(self.rows), 3), np.int64)
        result[:, :2] = [each[:2] for each in done]
        for asked, slots, _ in found:
            if (gone := slots == MISSING).any():
                starts = np.cumsum(asked.counts) - asked.counts
                result[asked.tables, 2] += np.add.reduceat(np.append(gone, False), starts) * (asked.counts > 0)
        for rows, not_finite in zip(self.rows, result[:, 1].tolist(), strict=True):
            rows.nan_rows += not_finite
        return result

    def _where(self, part: Gradients) -> Found:
        """Where rows are: as their lookup found them; where some of a fixed table have gone since, they come again."""
        found, now = part.found, self._set.removals() if self._fixed else []
        if found is None or any(found.removals[place] != now[place] for place in self._fixed):
            return self._find(part.asked)
        return found

    def _find(self, asked: Asked) -> Found:
        """Where rows are now; those of a fixed table are there afterwards."""
        slots, at = np.empty(len(asked.ids), np.uint32), 0
        for table, ids in asked.by_table():
            look = self._natives[table].put if self.rows[table].fixed else self._natives[table].find
            look(ids.ctypes.data, len(ids), slots.ctypes.data + 4 * at)
            at += len(ids)
        return Found(asked, slots, np.array(self._set.removals(), np.uint64))

    def _pending(self, part: Gradients, found: Found) -> _native.Pending:
        asked = part.asked
        block = asked.ids.ctypes.data, asked.starts(len(self.rows)), 0, 0, len(asked.ids), found.slots.ctypes.data
        where = self._addresses(asked, part.vectors)
        return _native.Pending(self._set, self._layout, *block, 0, 0, where, [], found.removals.tolist())

    def _steps(self, parts: Sequence[Gradients]) -> list[_native.RowStep | None]:
        """Of each table: the numbers of its step, which all trainers give alike; None where nobody has any."""
        steps: list[_native.RowStep | None] = [None] * len(self.rows)
        for part in parts:
            for place, table in enumerate(part.asked.tables.tolist()):
                rule = self.rows[table].rule
                if steps[table] is None and rule is not None:
                    numbers = part.numbers[place]
                    steps[table] = _native.RowStep(rule.kind, numbers[:12].tolist(), int(numbers[12]))
        return steps

    @property
    def clocks(self) -> list[int]:
        return [native.clock for native in self._natives]

    def set_clocks(self, clocks: Sequence[int]) -> None:
        for native, clock in zip(self._natives, clocks, strict=True):
            if native.clock != clock:
                native.clock = clock
