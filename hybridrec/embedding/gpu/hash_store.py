"""Rows of any ids in the memory of a GPU, which come as training sees them and go by the table's policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from hybridrec.embedding.devices import device_of
from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.capture import Settles
from hybridrec.embedding.gpu.homes import Homes
from hybridrec.embedding.gpu.read_capture import ReadCapture
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.transfer import read_rows, write_rows
from hybridrec.embedding.hash_store import capacity_of, full_error, policy_of
from hybridrec.embedding.policies import LFU
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Capture, RowData, Slots, Snapshot, StoreFigures
from hybridrec.embedding.table import Table
from hybridrec.ops.hash_index import triton as hash_index
from hybridrec.ops.hash_rows.lines import COUNTERS, of
from hybridrec.ops.hash_rows.triton_rows import FOREVER, HashRows, Policy, TableSlots
from hybridrec.ops.philox import reference_torch as philox
from hybridrec.ops.reserved import Column
from hybridrec.ops.row_update.reference import update_rows
from hybridrec.ops.row_update.triton import Drawn
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.types.id_block import NO_ID

Made = TypeVar("Made")


class DeviceHashStore(DeviceStore):
    """The rows of a dynamic table on a device, by slots that lookups take for ids; memory grows with them.

    Rows keep their slots as long as they are there, and stay where they lie: `reach` slots have addresses. `era`
    changes when rows may have gone since the last lookup that pinned them: a slot that is older may be another id's by
    now. What is asked here waits for the device; what lookups of a group do (`DynamicTables`) does not.
    """

    one_piece = False

    def __init__(
        self, table: Table, seed: int, device: torch.device, share: Share = WHOLE, slots: int = memory.FIRST_SLOTS
    ) -> None:
        self.capacity = min(capacity_of(table, share), memory.MOST_SLOTS)
        self._reach = memory.reach_of(table, self.capacity, device)
        self._slots_at_first = min(slots, self.capacity)
        self._columns: dict[str, Column] = {}  # of states
        super().__init__(table, seed, device, share)
        self.slots = self._allocated(
            lambda: TableSlots(self._policy(), device, self._slots_at_first, self._reach), self._slots_at_first
        )
        self.rows = HashRows({0: self.slots}, 1, device)
        self.homes = Homes({0: self}, 1, device)
        self.dropped = torch.zeros((), dtype=torch.int64, device=device)  # gradients whose row was gone
        self.era = self.asked = self.told = 0  # asked: ids that may have got a row; told: batches without room
        self.late: Callable[[], Sequence[int]] = lambda: self.slots.standing.tolist()

    def _policy(self) -> Policy:
        _, kind, steps, probability, count = policy_of(self.table, self.share)
        return Policy(self.capacity, kind, steps or FOREVER, probability, count, self.key)

    def _count_rows(self) -> int:
        return self._slots_at_first

    def join(self, rows: HashRows, late: Callable[[], Sequence[int]]) -> None:
        """Be part of the slots of a group, which counts for it from now on, and tells it late, without waiting."""
        self.rows, self.late = rows, late

    @property
    def drawn(self) -> Drawn:
        return Drawn(self.key, self.part, ids=self.slots.ids.data_ptr())

    @property
    def counted(self) -> bool:
        """Whether rows have counts."""
        return isinstance(self.table.eviction, LFU)

    @property
    def reach(self) -> int:
        return self._reach

    @property
    def weight(self) -> Tensor:
        raise TypeError(f"the rows of table {self.table.name!r} come and go; read(ids) and load() are for them")

    def state(self, name: str) -> Tensor:
        raise TypeError(f"the state of table {self.table.name!r} comes and goes; read(ids) and load() are for it")

    # -- memory -------------------------------------------------------------------------------------------

    def make_room(self, rows: int) -> None:
        """Have memory for so many rows, as far as the capacity goes; and for more to come, where that fits."""
        there, needed = self.slots.slots, min(rows, self.capacity)
        if self.has_room(rows):
            return
        slot_bytes = memory.dynamic_bytes(self.table, 1, self.rule)
        if not self._grows(memory.next_slots(there, needed, self.capacity, slot_bytes)):
            self._allocated(partial(self._grow, needed), needed)

    def has_room(self, rows: int) -> bool:
        """Whether there is memory for so many rows, as far as the capacity goes."""
        return min(rows, self.capacity) <= self.slots.slots

    def _allocated(self, make: Callable[[], Made], slots: int) -> Made:
        """What `make` allocates for so many slots; or an error that says how much that is."""
        size = memory.dynamic_bytes(self.table, slots, self.rule)
        told = "the rows and their state", self.table.name, size, self.device, memory.FEWER_SLOTS
        return memory.allocated(make, *told)

    def _grows(self, slots: int) -> bool:
        """Grow to so many, or not at all; an error that was handled no longer holds what was allocated."""
        try:
            self._grow(slots)
        except torch.OutOfMemoryError:
            return False
        return True

    def _grow(self, slots: int) -> None:
        """More memory, behind that which is there; nothing changes where it is too little."""
        self.rows.grow(0, slots, [self._rows, *self._columns.values()])
        self.there, self.states = self._rows.tensor, {name: column.tensor for name, column in self._columns.items()}

    def _make_rows(self) -> Tensor:
        self._rows = self._allocated(lambda: self._column((self.dim,), self.dtype), self._count)
        return self._rows.tensor

    def _make_states(self, rule: RowRule) -> dict[str, Tensor]:
        shapes = {column.name: () if column.per_row else (self.dim,) for column in rule.state}
        self._columns = memory.allocated(
            lambda: {name: self._column(shape, torch.float32) for name, shape in shapes.items()},
            *("the optimizer state", self.table.name, self._state_bytes(rule), self.device, memory.LESS_STATE),
        )
        for column in rule.state:
            self._columns[column.name].tensor.fill_(column.fill)
        return {name: column.tensor for name, column in self._columns.items()}

    def _column(self, shape: Sequence[int], dtype: torch.dtype) -> Column:
        """One for all slots that have memory by now."""
        made = Column(self._reach, shape, dtype, self.device)
        made.grow(self.slots.slots if "slots" in self.__dict__ else self._count)
        return made

    def detach(self) -> None:
        super().detach()
        self._columns = {}

    # -- a step -------------------------------------------------------------------------------------------

    def advance(self) -> None:
        self.advanced()
        self.rows.advance()

    def advanced(self) -> None:
        """The same, where the device has been told."""
        self._clock += 1
        self.era += 1

    def set_clock(self, clock: int) -> None:
        """Go on from another step."""
        self._clock = clock
        self.slots.standing[of.CLOCK] = clock
        self.era += 1

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        ids = self.checked(ids)
        self.check_owned(ids)
        if train and step is not None and step != self._clock:
            self.set_clock(step)
        found = self._admit(ids) if train else self._find(ids)
        unique, inverse = ids.unique(return_inverse=True)
        of_unique = torch.empty(len(unique), dtype=torch.int64).index_copy_(0, inverse, found)
        slots = torch.where(of_unique < 0, -1, of_unique).to(torch.uint32)
        return Slots(unique, inverse, slots, self._clock if train else None)

    def _find(self, ids: Tensor) -> Tensor:
        """Slots int64 on the CPU of ids there, NO_ID where there is no row."""
        return self._found(ids.to(self.device)).cpu()

    def _found(self, ids: Tensor) -> Tensor:
        return self.rows.find(ids, self.rows.one(0, len(ids)))

    def _admit(self, ids: Tensor, force: bool = False) -> Tensor:
        """The same for training, or all of them by force; an error where there is too little room."""
        self.settle()
        wanted = int(self.slots.standing[of.SIZE]) + len(ids)
        self.make_room(wanted)
        there, evict = ids.to(self.device), wanted > self.capacity
        found = self.rows.prepare(there, self.rows.one(0, len(ids)), force=force, evict=evict, homes=self.homes())
        self.asked += len(ids)
        self.refuse(self.slots.standing.tolist())
        return found.cpu()

    def refuse(self, standing: Sequence[int], late: str = "") -> None:
        """Raise if ids found no room, and nobody was told yet."""
        if standing[of.FAULTS] > self.told:
            self.told, needed, spare = (standing[place] for place in (of.FAULTS, of.LACKED, of.SPARED))
            told = f"holds {self.capacity} rows and {needed} more are needed, but only {spare} may be evicted"
            raise full_error(self.table, told + late)

    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        self.check_rule(step)
        at = slots.slots.view(torch.int32).long()
        live = slots.live()
        live &= self.drop_gone(slots.ids.to(self.device), at.to(self.device)).cpu() >= 0
        data = self.at(at[live])
        states = [data.state[name] for name in step.rule.names]
        rows, states = update_rows(step, data.rows.float(), states, grads[live].float().cpu())
        rows = philox.round_stochastic(self.key, data.ids, rows, step.step, self.dtype, self.share.column)
        self.settle()
        self._put(at[live], rows, dict(zip(step.rule.names, states, strict=True)))
        self.release(slots)

    def lookup(self, ids: Tensor) -> Tensor:
        at = self._found(ids.to(self.device))
        return torch.where((at >= 0)[:, None], self.there[at.clamp(min=0)], 0)

    def drop_gone(self, ids: Tensor, slots: Tensor, count: bool = True) -> Tensor:
        """Slots of an earlier lookup, NO_ID for those that are no longer of their ids, which are counted, or not."""
        at = slots.clamp(min=0)
        touched = self.slots.touched[at]
        there = self._live(touched) if count else touched != -1  # an expired row can still be read, not updated
        gone = (slots >= 0) & ((self.slots.ids[at] != ids) | ~there)
        if count:
            self.dropped += gone.sum()
        return torch.where(gone, NO_ID, slots)

    # -- all rows -----------------------------------------------------------------------------------------

    def _has_row(self, live: bool) -> Tensor:
        """Which slots have a row, bool; those that have expired among them, or not."""
        return self._live(self.slots.touched) if live else (self.slots.touched.long() & of.WORD) != of.UNSEEN

    def _live(self, touched: Tensor) -> Tensor:
        """Which of these times of a last lookup, as they lie there, are those of rows that have not expired."""
        when = touched.long() & of.WORD
        return (when != of.UNSEEN) & (self._clock - when <= self.slots.policy.lifetime)

    def taken(self, live: bool = False) -> Tensor:
        """The slots int64 of such rows, on the CPU, ascending."""
        return self._has_row(live).nonzero()[:, 0].cpu()

    def __len__(self) -> int:
        return int(self._has_row(live=True).sum())

    def ids(self) -> Tensor:
        return read_rows(self.slots.ids, self.taken(live=True)).sort().values

    def some_ids(self, count: int) -> Tensor:
        found = self.slots.ids[self._has_row(live=True)]
        return found.topk(min(count, len(found)), largest=False).values.cpu()

    def at(self, slots: Tensor) -> RowData:
        """All that belongs to the rows of slots int64 on the CPU."""
        state = {name: read_rows(values, slots) for name, values in self.states.items()}
        return RowData(read_rows(self.slots.ids, slots), read_rows(self.there, slots), state, *self._scores(slots))

    def _scores(self, slots: Tensor) -> tuple[Tensor, Tensor | None]:
        counts = read_rows(self.slots.counts, slots).long() & of.WORD if self.counted else None
        return read_rows(self.slots.touched, slots).long() & of.WORD, counts

    def read(self, ids: Tensor) -> RowData:
        found = self._find(self.checked(ids))
        if len(lost := ids[found < 0]):
            raise ValueError(f"table {self.table.name!r} has no row for id {int(lost[0])}; ids() has those it holds")
        return self.at(found)

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.check(ids, rows, state, touched, counts)
        there = self._find(self.checked(ids))
        there = there[there >= 0]
        before = self._scores(there)
        try:
            at = self._admit(self.checked(ids), force=True)
        except ValueError:  # they were touched, lest they make room for the others
            self._score(there, *before)
            raise
        self._put(at, rows, state or {})
        self._score(at, touched, counts)

    def _put(self, at: Tensor, rows: Tensor, state: Mapping[str, Tensor]) -> None:
        """Give the rows of slots these values, and state that is not among them its fill."""
        write_rows(self.there, at, rows)
        for column in self.rule.state if self.rule else ():
            write_rows(self.states[column.name], at, state.get(column.name, column.fill))

    def _score(self, at: Tensor, touched: Tensor | None, counts: Tensor | None) -> None:
        """Give the rows of slots these scores: by default those of one lookup, now."""
        write_rows(self.slots.touched, at, _words(torch.full_like(at, self._clock) if touched is None else touched))
        if self.counted:
            write_rows(self.slots.counts, at, _words(torch.ones_like(at) if counts is None else counts))

    def sketch(self) -> Tensor | None:
        """Counts of ids that are not yet let in, uint8, where the table has them: as files keep them."""
        return self.slots.saved_sketch()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.at(self.taken()), self._clock, self.rule, self.sketch())

    def _make_capture(self) -> Settles:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # whoever reads has a stream of its own
        slots, widths = self.taken(), [values[:1].nbytes for values in (self.there, *self.states.values())]
        of_rows = len(slots), lambda first, last: self.at(slots[first:last]), sum(widths) + 16
        return ReadCapture(self.clock, self.rule, *of_rows, self.sketch())

    def refill(self, held: Capture) -> None:
        if held.most > self.capacity:
            raise full_error(self.table, f"holds {self.capacity} rows, and {held.most} are to be restored")
        if held.rule != self.rule:
            self.detach() if held.rule is None else self.attach(held.rule)
        self.clear()
        self.asked += held.most
        try:
            self.make_room(held.most)
            self.rows.finish(0)  # nothing is there that could move
            first = 0
            for part in held.chunks():
                first = self._append(first, part, held.clock)
            if held.sketch is not None:
                self.slots.load_sketch(held.sketch)
        except BaseException:
            self.clear()
            raise
        self.set_clock(held.clock)

    def _append(self, first: int, part: RowData, clock: int) -> int:
        """Give rows the slots from the first on, and return the next."""
        self.check(*part)
        ids, count = self.checked(part.ids), len(part.ids)
        at = torch.arange(first, first + count)
        if count:
            self._enter(ids.to(self.device), at.to(self.device))
            write_rows(self.slots.ids, at, ids)
            self._put(at, part.rows, part.state)
            self._score(at, torch.full_like(ids, clock) if part.touched is None else part.touched, part.counts)
            self.slots.standing[of.SIZE] = first + count  # the free ones behind it stand in order
        return first + count

    def _enter(self, ids: Tensor, at: Tensor) -> None:
        spans = self.rows.one(0, len(ids))
        known = self.rows.unaged(0, ids) >= 0
        hash_index.insert(ids, at, spans, self.rows.indexes, self.rows.lacking)
        twice = known | (self.rows.unaged(0, ids) != at)
        if bool(twice.any()):
            raise ValueError(f"table {self.table.name!r}: id {int(ids[twice][0])} is there twice; each may come once")

    def erase(self, ids: Tensor) -> None:
        self.settle()
        self.rows.erase(0, self.checked(ids).unique().to(self.device))
        self.era += 1

    def clear(self) -> None:
        if "rows" in self.__dict__:  # not while it is made
            self.settle()
            self.slots.clear()
            self.rows.moved()
            self.era += 1

    def dirty(self, since: int) -> Tensor:
        slots = self.taken(live=True)
        touched, _ = self._scores(slots)
        return read_rows(self.slots.ids, slots[touched >= since]).sort().values

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        return {**_counters(self.slots.standing.tolist()), "dropped_gradients": int(self.dropped), **super().counters()}

    def ask_figures(self) -> Callable[[], StoreFigures]:
        """What gives its figures, as they were some lookups ago: nobody waits for the device."""
        standing = self.late()
        return lambda: StoreFigures(standing[of.SIZE], self.memory()["allocated"], _counters(standing))

    def memory(self) -> dict[str, float]:
        parts = self.slots
        keys, index, scores = parts.bytes()
        rows, state = self._rows.nbytes, sum(column.nbytes for column in self._columns.values())
        return {
            **{"rows": rows, "state": state, "keys": keys, "scores": scores, "index": index},
            "sketch": parts.sketch_bytes,  # of files; here a count has four bytes
            "allocated": rows + state + keys + scores + index + parts.sketch.nbytes,
            "overhead_per_row": (keys + scores + index) / parts.slots,
        }

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (self.table, self.seed, str(self.device), self.share, self.snapshot())

    def __deepcopy__(self, memo: dict) -> DeviceHashStore:
        return _remade(self.table, self.seed, str(self.device), self.share, self.snapshot())


def _counters(standing: Sequence[int]) -> dict[str, int]:
    return {name: standing[place] for name, place in COUNTERS.items()}


def _words(numbers: Tensor) -> Tensor:
    """Numbers without sign as the int32 of the same bits."""
    whole = numbers.long() & of.WORD
    return (whole - (whole >> 31 << 32)).int()


def _remade(table: Table, seed: int, device: str, share: Share, snapshot: Snapshot) -> DeviceHashStore:
    made = DeviceHashStore(table, seed, device_of(device), share)
    made.restore(snapshot)
    return made
