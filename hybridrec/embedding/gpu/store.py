"""Rows 0 … n - 1, or every so many of them, in the memory of a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hybridrec.data.hashing import xxh64
from hybridrec.embedding.devices import device_of
from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.capture import ROWS, DeviceCapture, Settles
from hybridrec.embedding.gpu.transfer import read_rows, rows_of_part, to_host, write_rows
from hybridrec.embedding.initial import Constant, Initial, Uniform
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Capture, RowData, Slots, Snapshot, Store
from hybridrec.embedding.table import Table
from hybridrec.ops.philox import initial_triton
from hybridrec.ops.philox import reference_torch as philox
from hybridrec.ops.philox.part import Part
from hybridrec.ops.row_update.reference import update_rows
from hybridrec.ops.row_update.triton import Drawn
from hybridrec.optim.rule import RowRule, RowStep


class DeviceStore(Store):
    """The rows of a fixed table on a device; slot s has the row of id `share.index + s * share.count`.

    What it gives out for people and files is on the CPU, and ids are those of the whole table. Only lookups by a group
    take slots for ids. Whatever is done with all rows is done in parts: nothing needs room for a second table there.
    """

    there: Tensor  # rows as kernels read and write them

    def __init__(
        self, table: Table, seed: int, device: torch.device, share: Share = WHOLE, rows: Tensor | None = None
    ) -> None:
        """With `rows`, contiguous [n, dim] there, these are its rows, in the memory that they have."""
        super().__init__(table, seed, share)
        self.device = device
        self.key = xxh64(table.name, seed)
        self.part = Part(share.index, share.count, share.column)
        self._count = self._count_rows()
        self.states: dict[str, Tensor] = {}
        self.moves = 0  # how often the states have got other memory
        self.left_out = torch.zeros((), device=device)  # rows, because their gradient was not finite
        self._clock = 0
        self._captures: list[weakref.ref[Settles]] = []  # those that read from the device
        if rows is None:
            self._begin()
        else:
            self.there = rows

    def _begin(self) -> None:
        """Give rows memory, and their initial values."""
        self.there = self._make_rows()
        self.clear()

    def _count_rows(self) -> int:
        """Rows that have memory at first."""
        return self.share.rows_of(self.table.fixed_rows)

    def _make_rows(self) -> Tensor:
        """Memory for rows that kernels read and write."""
        size = memory.table_bytes(self.table, self.share)
        return memory.allocated(
            lambda: torch.empty(self._count, self.dim, dtype=self.dtype, device=self.device),
            *("the rows", self.table.name, size, self.device, memory.FEWER_ROWS),
        )

    def _make_states(self, rule: RowRule) -> dict[str, Tensor]:
        """Memory for the state of those rows, at its fill."""
        shapes = {c.name: (self._count,) if c.per_row else (self._count, self.dim) for c in rule.state}
        return memory.allocated(
            lambda: {c.name: torch.full(shapes[c.name], c.fill, device=self.device) for c in rule.state},
            *("the optimizer state", self.table.name, self._state_bytes(rule)),
            *(self.device, memory.LESS_STATE),
        )

    def _state_bytes(self, rule: RowRule) -> int:
        return memory.state_bytes(self.table, rule, self.share, len(self.there))

    @property
    def reach(self) -> int:
        """Rows that have an address: lookups are laid out for so many."""
        return len(self.there)

    @property
    def weight(self) -> Tensor:
        """All rows [n, dim] as they lie on the device: writing to it changes them.

        Whoever asks for it may write, so captures first copy what they have not read; `there` is for those who do not.
        """
        self.settle()
        return self.there

    def _at(self, ids: Tensor) -> Tensor:
        """The slots int64 of ids that are here, -1 of -1."""
        if self.share.count == 1 and not self.share.empty:
            return ids
        self.check_owned(ids[ids >= 0])
        return torch.where(ids < 0, -1, self.share.row_of(ids))

    # -- a step -------------------------------------------------------------------------------------------

    @property
    def drawn(self) -> Drawn:
        """What the rounding of its rows is drawn by, where they are of a half type."""
        return Drawn(self.key, self.part)

    @property
    def clock(self) -> int:
        return self._clock

    def advance(self) -> None:
        self._clock += 1

    def settle(self) -> None:
        """Rows or state are about to change: captures that read from the device take the rest to the host.

        While a CUDA graph is recorded nothing changes; who replays it calls this before.
        """
        if not self._captures or (self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            return
        captures, self._captures = self._captures, []
        for reference in captures:
            if (capture := reference()) is not None:
                capture.settle()

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        unique, inverse = resolve(self.table, self.checked(ids)).unique(return_inverse=True)
        return Slots(unique, inverse, self._at(unique).to(torch.uint32), self._clock if train else None)

    def gather(self, slots: Slots) -> Tensor:
        live = slots.live()
        rows = torch.zeros(len(slots), self.dim, dtype=self.dtype)
        rows[live] = self._read(ROWS, slots.slots[live].to(torch.int64))
        return rows

    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        self.check_rule(step)
        live = slots.live()
        data = self.read(slots.ids[live])
        states = [data.state[name] for name in step.rule.names]
        rows, states = update_rows(step, data.rows.float(), states, grads[live].float().cpu())
        rows = philox.round_stochastic(self.key, data.ids, rows, step.step, self.dtype, self.share.column)
        self.load(data.ids, rows, dict(zip(step.rule.names, states, strict=True)))
        self.release(slots)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows [N, dim] of ids int64 [N], on the device; zeros for ids without a row."""
        at = self._at(resolve(self.table, ids.to(self.device)))
        if not len(self):
            return torch.zeros(len(at), self.dim, dtype=self.dtype, device=self.device)
        return torch.where((at >= 0)[:, None], self.there[at.clamp(min=0)], 0)

    def checked(self, ids: Tensor) -> Tensor:
        return super().checked(ids.cpu())

    # -- optimizer state ----------------------------------------------------------------------------------

    @classmethod
    def expect(cls, wanted: Sequence[tuple[Store, RowRule]]) -> None:
        for device in {store.device for store, _ in wanted if isinstance(store, DeviceStore)}:
            here = [(s, rule) for s, rule in wanted if isinstance(s, DeviceStore) and s.device == device]
            free = memory.free_bytes(device)
            held = {values.data_ptr(): values for store, _ in here for values in store.states.values()}  # some share it
            dropped = sum(values.nbytes for values in held.values())
            kept = [(store.table.name, store._state_bytes(rule)) for store, rule in here]
            memory.refuse_state(kept, device, None if free is None else free + dropped)
        memory.refuse_cold_state([(s.table, s.share, s.rule, rule) for s, rule in wanted])

    def attach(self, rule: RowRule) -> None:
        self.detach()  # first, so that there is room
        self.states = self._make_states(rule)
        self.rule = rule

    def detach(self) -> None:
        self.settle()
        self.rule, self.states, self.moves = None, {}, self.moves + 1

    def state(self, name: str) -> Tensor:
        """All rows' optimizer state of this name, [n, dim] or [n], as it lies in memory until a rule is attached."""
        self.settle()
        return self.states[name]

    # -- all rows -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def _read(self, name: str, at: Tensor) -> Tensor:
        """What the rows of slots int64 have in a column, copied to the CPU."""
        return read_rows(self.there if name == ROWS else self.states[name], at)

    def _write(self, name: str, at: Tensor, given: Tensor | float) -> None:
        """Give the rows of slots int64 other values in a column: one for each, or the same."""
        write_rows(self.there if name == ROWS else self.states[name], at, given)

    def ids(self) -> Tensor:
        return self.share.id_of(torch.arange(len(self)))

    def read(self, ids: Tensor) -> RowData:
        at = self._at(resolve(self.table, self.checked(ids)))
        if len(lost := ids[at < 0]):
            raise ValueError(f"table {self.table.name!r} has no row for id {int(lost[0])}; ids() has those it holds")
        return RowData(ids, self._read(ROWS, at), {name: self._read(name, at) for name in self.states})

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.check(ids, rows, state, touched, counts)
        self.settle()
        at = self._at(self.checked(ids))
        self._write(ROWS, at, rows)
        for column in self.rule.state if self.rule else ():
            self._write(column.name, at, (state or {}).get(column.name, column.fill))

    def snapshot(self) -> Snapshot:
        state = {name: to_host(values) for name, values in self.states.items()}
        return Snapshot(RowData(self.ids(), to_host(self.there), state), self._clock, self.rule)

    def capture(self) -> Capture:
        made = self._make_capture()
        self._captures = [held for held in self._captures if held() is not None] + [weakref.ref(made)]
        return made

    def _make_capture(self) -> Settles:
        return DeviceCapture(self)

    def refill(self, held: Capture) -> None:
        if held.rule != self.rule:
            self.detach() if held.rule is None else self.attach(held.rule)
        if held.most < len(self):
            self.clear()
        for part in held.chunks():
            self.load(*part)
        self._clock = held.clock

    def erase(self, ids: Tensor) -> None:
        self.check(ids, torch.empty(len(ids), self.dim, device="meta"))
        self.settle()
        at = self._at(self.checked(ids))
        for part in at.split(rows_of_part(at.dtype.itemsize)):
            self._initialise(part.to(self.device))
        for column in self.rule.state if self.rule else ():
            self._write(column.name, at, column.fill)

    def clear(self) -> None:
        self.settle()
        self._initialise()
        for column in self.rule.state if self.rule else ():
            self.states[column.name].fill_(column.fill)

    def dirty(self, since: int) -> Tensor:
        return self.ids() if self._clock > since else torch.empty(0, dtype=torch.int64)

    def _initialise(self, at: Tensor | None = None) -> None:
        """Give all rows, or those in slots on the device, the values that they have before any update."""
        draw_initial(self.table.init, self.there, self.key, at, self.part)

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        counts = self.share.column == 0  # who has the first columns counts rows
        return {"nan_rows": int(self.left_out) if counts else 0}  # waits for the device

    def memory(self) -> dict[str, float]:
        rows, state = self.there.nbytes, sum(values.nbytes for values in self.states.values())
        return {"rows": rows, "state": state, "index": 0, "allocated": rows + state, "overhead_per_row": 0.0}

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (self.table, self.seed, str(self.device), self.share, self.snapshot())

    def __deepcopy__(self, memo: dict) -> DeviceStore:
        made = DeviceStore(self.table, self.seed, self.device, self.share)
        if self.rule is not None:
            made.attach(self.rule)
        for name, values in self.states.items():
            made.states[name].copy_(values)
        made.there.copy_(self.there)
        made._clock = self._clock
        return made


def draw_initial(init: Initial, rows: Tensor, key: int, at: Tensor | None, part: Part) -> None:
    """Give all rows of a part of a table, or those listed, the values that they have before any update."""
    if isinstance(init, Constant):
        rows.fill_(init.value) if at is None else rows.index_fill_(0, at, init.value)
        return
    draw = initial_triton.uniform_ if isinstance(init, Uniform) else initial_triton.normal_
    draw(rows, key, init.size, at, part)


def _remade(table: Table, seed: int, device: str, share: Share, snapshot: Snapshot) -> DeviceStore:
    made = DeviceStore(table, seed, device_of(device), share)
    made.restore(snapshot)
    return made
