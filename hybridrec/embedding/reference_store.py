"""The plain store: a dict of rows and the reference kernels. Slow, and what every other store must agree with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hybridrec.data.hashing import xxh64
from hybridrec.embedding.hash_store import capacity_of
from hybridrec.embedding.initial import initial_rows
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.policies import LFU, TTL, MinCount, Probability
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import MISSING, WHOLE, Capture, RowData, Slots, Snapshot, Store
from hybridrec.embedding.table import Table
from hybridrec.ops.philox import reference as philox
from hybridrec.ops.philox.reference_torch import round_stochastic
from hybridrec.ops.row_update.reference import update_rows
from hybridrec.optim.rule import RowRule, RowStep

COUNTERS = ("hits", "misses", "inserted", "refused", "evicted", "expired")  # the first two and refusals by occurrence


def victims(scores: Mapping[int, int], needed: int, capacity: int) -> list[int]:
    """The ids to give up so that `needed` rows come free: those of the lowest score, the lower id of equal ones.

    Some more go at once, a 64th of the table, so that a full table does not search for one row at a time.

    >>> victims({7: 3, 8: 1, 5: 3}, needed=2, capacity=3)
    [8, 5]
    """
    return sorted(scores, key=lambda id: (scores[id], id))[: max(needed, capacity // 64)]


@dataclass
class Row:
    """One row and what belongs to it."""

    values: Tensor  # [dim]
    state: dict[str, Tensor]
    touched: int
    count: int


class ReferenceStore(Store):
    """Rows by id in a dict, so that a slot only says whether there is a row."""

    def __init__(self, table: Table, seed: int = 0, share: Share = WHOLE) -> None:
        super().__init__(table, seed, share)
        self._key = xxh64(table.name, seed)
        self._clock = 0
        self._counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.clear()

    @property
    def clock(self) -> int:
        return self._clock

    def advance(self) -> None:
        self._clock += 1

    # -- a step -------------------------------------------------------------------------------------------

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        ids = self.checked(ids)
        if not self.table.dynamic:
            ids = resolve(self.table, ids)
            self.check_owned(ids[ids >= 0].unique())
            return self._slots(ids, train)
        self.check_owned(ids)
        if train:
            self._clock = self._clock if step is None else step
            self._train(Counter(ids.tolist()))
        return self._slots(ids, train)

    def _slots(self, ids: Tensor, train: bool) -> Slots:
        unique, inverse = ids.unique(return_inverse=True)
        slots = [place if self._live(id) else MISSING for place, id in enumerate(unique.tolist())]
        return Slots(unique, inverse, torch.tensor(slots, dtype=torch.uint32), self._clock if train else None)

    def gather(self, slots: Slots) -> Tensor:
        rows = torch.zeros(len(slots), self.dim, dtype=self.dtype)
        for place in slots.live().nonzero()[:, 0].tolist():
            rows[place] = self._rows[int(slots.ids[place])].values
        return rows

    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        self.check_rule(step)
        here = torch.tensor([self._live(id) for id in slots.ids.tolist()], dtype=torch.bool) & slots.live()
        if bool(here.any()):
            self._apply(slots.ids[here], grads[here], step)
        self.release(slots)

    def _apply(self, ids: Tensor, grads: Tensor, step: RowStep) -> None:
        data = self.read(ids)
        states = [data.state[name] for name in step.rule.names]
        values, states = update_rows(step, data.rows.float(), states, grads)
        rounded = round_stochastic(self._key, ids, values, step.step, self.dtype, self.share.column)
        for place, (id, value) in enumerate(zip(ids.tolist(), rounded, strict=True)):
            self._rows[id].values = value
            self._rows[id].state = {name: new[place] for name, new in zip(step.rule.names, states, strict=True)}

    # -- which ids have rows ------------------------------------------------------------------------------

    def _live(self, id: int) -> bool:
        row = self._rows.get(id)
        eviction = self.table.eviction
        return row is not None and not (isinstance(eviction, TTL) and self._clock - row.touched > eviction.steps)

    def _train(self, times: Counter[int]) -> None:
        """Score the ids that have rows, and let in the others, in order of appearance."""
        absent = [id for id in times if not self._live(id)]
        for id in times.keys() - set(absent):
            self._rows[id].touched = self._clock
            self._rows[id].count += times[id]
            self._counts["hits"] += times[id]
        self._counts["misses"] += sum(times[id] for id in absent)
        welcome = [id for id in absent if self._admitted(id, times[id])]
        if self.table.eviction is None:
            welcome = welcome[: self._capacity - len(self._rows)]
        self._admit({id: times[id] for id in welcome})
        self._saw({id: times[id] for id in absent})
        self._counts["refused"] += sum(times[id] for id in absent if id not in welcome)

    def _admitted(self, id: int, times: int) -> bool:
        admission = self.table.admission
        if isinstance(admission, Probability):
            return bool(philox.admitted(self._key, np.array([id]), admission.p)[0])
        return not isinstance(admission, MinCount) or self._seen[id] + times >= admission.k

    def _saw(self, times: Mapping[int, int]) -> None:
        """Count ids that had no row, where admission needs it."""
        if isinstance(self.table.admission, MinCount):
            self._seen.update(times)

    def _admit(self, times: Mapping[int, int], kept: Set[int] = frozenset()) -> None:
        """Give rows to these ids, once room has been made for them."""
        self._make_room(times.keys(), kept)
        for id, values in zip(times, self._initial(list(times)), strict=True):
            self._counts["expired"] += self._rows.pop(id, None) is not None
            self._counts["inserted"] += 1
            self._rows[id] = Row(values, self._fresh_state(), self._clock, times[id])

    def _make_room(self, welcome: Set[int], kept: Set[int]) -> None:
        needed = len(self._rows.keys() | welcome) - self._capacity
        if needed <= 0:
            return
        frequent, never = isinstance(self.table.eviction, LFU), self.table.eviction is None
        free = {id: row for id, row in self._rows.items() if row.touched != self._clock and id not in welcome | kept}
        scores = {} if never else {id: row.count if frequent else row.touched for id, row in free.items()}
        if needed > len(scores):
            raise ValueError(
                f"table {self.table.name!r} holds {self._capacity} rows and {needed} more are needed, but only "
                f"{len(scores)} may be evicted; give it a larger capacity, or take smaller batches"
            )
        for id in victims(scores, needed, self._capacity):
            self._counts["evicted" if self._live(id) else "expired"] += 1
            del self._rows[id]

    @property
    def _capacity(self) -> int:
        return capacity_of(self.table, self.share)

    # -- all rows -----------------------------------------------------------------------------------------

    def attach(self, rule: RowRule) -> None:
        self.rule = rule
        for row in self._rows.values():
            row.state = self._fresh_state()

    def detach(self) -> None:
        self.rule = None
        for row in self._rows.values():
            row.state = {}

    def __len__(self) -> int:
        return len(self.ids())

    def ids(self) -> Tensor:
        return torch.tensor(sorted(id for id in self._rows if self._live(id)), dtype=torch.int64)

    def read(self, ids: Tensor) -> RowData:
        rows = [self._rows[id] for id in ids.tolist()]
        blank = Row(torch.empty(self.dim, dtype=self.dtype), self._fresh_state(), 0, 0)  # so that no rows have shapes
        values = torch.stack([row.values for row in [blank, *rows]])[1:]
        state = {name: torch.stack([row.state[name] for row in [blank, *rows]])[1:] for name in blank.state}
        if not self.table.dynamic:
            return RowData(ids, values, state)
        touched, counts = (torch.tensor([getattr(row, name) for row in rows]).long() for name in ("touched", "count"))
        return RowData(ids, values, state, touched, counts if isinstance(self.table.eviction, LFU) else None)

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.check(ids, rows, state, touched, counts)
        if self.table.dynamic:
            new = {id: 1 for id in ids.tolist() if not self._live(id)}
            self._admit(new, kept=set(ids.tolist()))
            self._saw(new)
        self._put(ids, rows, state, touched, counts)

    def _put(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None,
        touched: Tensor | None,
        counts: Tensor | None,
    ) -> None:
        for place, id in enumerate(ids.tolist()):
            kept = {name: column[place].clone() for name, column in (state or {}).items()}
            clock = self._clock if touched is None else int(touched[place])
            count = 1 if counts is None else int(counts[place])
            self._rows[id] = Row(rows[place].to(self.dtype), self._fresh_state() | kept, clock, count)

    def snapshot(self) -> Snapshot:
        data = self.read(torch.tensor(sorted(self._rows), dtype=torch.int64))
        ids = torch.tensor(sorted(self._seen), dtype=torch.int64)
        seen = torch.tensor([self._seen[id] for id in ids.tolist()], dtype=torch.int64)
        return Snapshot(data, self._clock, self.rule, torch.stack([ids, seen]))

    def refill(self, held: Capture) -> None:
        self.clear()
        self.rule, self._clock = held.rule, held.clock
        for part in held.chunks():
            self._put(*part)
        if held.sketch is not None:
            self._seen = Counter(dict(zip(*held.sketch.tolist(), strict=True)))

    def erase(self, ids: Tensor) -> None:
        if not self.table.dynamic:
            self.check_owned(ids)
        for id in ids.tolist():
            self._rows.pop(id, None)
        if not self.table.dynamic:
            self._fill(ids)

    def clear(self) -> None:
        self._rows: dict[int, Row] = {}
        self._seen: Counter[int] = Counter()  # what admission has counted
        if not self.table.dynamic:
            ids = torch.arange(self.table.fixed_rows)
            self._fill(ids[self.share.owns(self.table, ids)])

    def dirty(self, since: int) -> Tensor:
        if not self.table.dynamic:
            return self.ids() if self._clock > since else torch.empty(0, dtype=torch.int64)
        return torch.tensor([id for id in self.ids().tolist() if self._rows[id].touched >= since], dtype=torch.int64)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def memory(self) -> dict[str, float]:
        rows = len(self._rows) * self.dim * self.dtype.itemsize
        return {"rows": rows, "state": sum(s.nbytes for row in self._rows.values() for s in row.state.values())}

    # -- one row ------------------------------------------------------------------------------------------

    def _initial(self, ids: list[int]) -> Tensor:
        last, given = self.share.column + self.dim, torch.tensor(ids, dtype=torch.int64)
        return initial_rows(self.table.init, self._key, given, last, self.dtype)[:, self.share.column :]

    def _fill(self, ids: Tensor) -> None:
        for id, values in zip(ids.tolist(), self._initial(ids.tolist()), strict=True):
            self._rows[id] = Row(values, self._fresh_state(), 0, 0)

    def _fresh_state(self) -> dict[str, Tensor]:
        columns = self.rule.state if self.rule else ()
        return {c.name: torch.full(() if c.per_row else (self.dim,), c.fill) for c in columns}
