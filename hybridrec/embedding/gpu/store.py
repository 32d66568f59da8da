"""Rows 0 … n - 1 in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hybridrec.data.hashing import xxh64
from hybridrec.embedding.initial import Constant, Uniform
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.store import Capture, RowData, Slots, Snapshot, Store
from hybridrec.embedding.table import Table
from hybridrec.ops.philox import reference_torch as philox
from hybridrec.ops.row_update.reference import update_rows
from hybridrec.optim.rule import RowRule, RowStep

MOST_DRAWN = 1 << 24  # initial values made at a time: the tables may leave little room


class DeviceStore(Store):
    """The rows of a fixed table on a device; a slot is an id. What it gives out for people and files is on the CPU."""

    def __init__(self, table: Table, seed: int, device: torch.device) -> None:
        super().__init__(table, seed)
        self.device = device
        self.key = xxh64(table.name, seed)
        self.weight = torch.empty(table.fixed_rows, table.dim, dtype=table.dtype, device=device)
        self.states: dict[str, Tensor] = {}
        self.moves = 0  # how often the states have got other memory
        self.left_out = torch.zeros((), device=device)  # rows, because their gradient was not finite
        self._clock = 0
        self.clear()

    # -- a step -------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        return self._clock

    def advance(self) -> None:
        self._clock += 1

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        unique, inverse = resolve(self.table, self.checked(ids)).unique(return_inverse=True)
        return Slots(unique, inverse, unique.to(torch.uint32), self._clock if train else None)

    def gather(self, slots: Slots) -> Tensor:
        live = slots.live()
        rows = torch.zeros(len(slots), self.dim, dtype=self.dtype)
        rows[live] = self.weight[slots.ids[live].to(self.device)].cpu()
        return rows

    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        self.check_rule(step)
        live = slots.live()
        data = self.read(slots.ids[live])
        states = [data.state[name] for name in step.rule.names]
        rows, states = update_rows(step, data.rows.float(), states, grads[live].float().cpu())
        rows = philox.round_stochastic(self.key, data.ids, rows, step.step, self.dtype)
        self.load(data.ids, rows, dict(zip(step.rule.names, states, strict=True)))
        self.release(slots)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows [N, dim] of ids int64 [N], on the device; zeros for ids without a row."""
        at = resolve(self.table, ids.to(self.device))
        return torch.where((at >= 0)[:, None], self.weight[at.clamp(min=0)], 0)

    def checked(self, ids: Tensor) -> Tensor:
        return super().checked(ids.cpu())

    # -- optimizer state ----------------------------------------------------------------------------------

    def attach(self, rule: RowRule) -> None:
        self.rule, self.moves = rule, self.moves + 1
        rows = self.table.fixed_rows
        shapes = {column.name: (rows,) if column.per_row else (rows, self.dim) for column in rule.state}
        self.states = {c.name: torch.full(shapes[c.name], c.fill, device=self.device) for c in rule.state}

    def detach(self) -> None:
        self.rule, self.states, self.moves = None, {}, self.moves + 1

    def state(self, name: str) -> Tensor:
        """All rows' optimizer state of this name, [n, dim] or [n], as it lies in memory until a rule is attached."""
        return self.states[name]

    # -- all rows -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.table.fixed_rows

    def ids(self) -> Tensor:
        return torch.arange(len(self))

    def read(self, ids: Tensor) -> RowData:
        at = resolve(self.table, self.checked(ids)).to(self.device)
        return RowData(ids, self.weight[at].cpu(), {name: values[at].cpu() for name, values in self.states.items()})

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.check(ids, rows, state, touched, counts)
        at = ids.to(self.device)
        self.weight[at] = rows.to(self.weight)
        for column in self.rule.state if self.rule else ():
            values = self.states[column.name]
            values[at] = column.fill if column.name not in (state or {}) else (state or {})[column.name].to(values)

    def snapshot(self) -> Snapshot:
        state = {name: values.cpu().clone() for name, values in self.states.items()}
        return Snapshot(RowData(self.ids(), self.weight.cpu().clone(), state), self._clock, self.rule)

    def refill(self, held: Capture) -> None:
        if held.rule != self.rule:
            self.detach() if held.rule is None else self.attach(held.rule)
        if held.most < len(self):
            self.clear()
        for part in held.chunks():
            self.load(*part)
        self._clock = held.clock

    def erase(self, ids: Tensor) -> None:
        self.load(ids, self._initial(self.checked(ids).to(self.device)).cpu())

    def clear(self) -> None:
        for part in torch.arange(len(self), device=self.device).split(max(1, MOST_DRAWN // self.dim)):
            self.weight[part[0] : part[-1] + 1] = self._initial(part)
        for column in self.rule.state if self.rule else ():
            self.states[column.name].fill_(column.fill)

    def dirty(self, since: int) -> Tensor:
        return self.ids() if self._clock > since else torch.empty(0, dtype=torch.int64)

    def _initial(self, ids: Tensor) -> Tensor:
        """The rows [n, dim] of ids before any update."""
        init = self.table.init
        if isinstance(init, Constant):
            return torch.full((len(ids), self.dim), init.value, dtype=self.dtype, device=self.device)
        draw = philox.uniform if isinstance(init, Uniform) else philox.normal
        return draw(self.key, ids, self.dim, init.size).to(self.dtype)

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        return {"nan_rows": int(self.left_out)}

    def memory(self) -> dict[str, float]:
        state = sum(values.nbytes for values in self.states.values())
        return {"rows": self.weight.nbytes, "state": state, "index": 0, "overhead_per_row": 0.0}

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (self.table, self.seed, self.device, self.snapshot())

    def __deepcopy__(self, memo: dict) -> DeviceStore:
        return _remade(self.table, self.seed, self.device, self.snapshot())


def _remade(table: Table, seed: int, device: torch.device, snapshot: Snapshot) -> DeviceStore:
    made = DeviceStore(table, seed, device)
    made.restore(snapshot)
    return made
