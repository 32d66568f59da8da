"""What the stores in native memory share: rows and state by slot, and updates by the fused kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.capture import NativeCapture
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Capture, RowData, Slots, Snapshot, Store
from hybridrec.embedding.table import Table
from hybridrec.optim.rule import RowRule, RowStep

UNKNOWN = 2**64 - 1  # removals so far, when the slots were found: not kept, so each slot is checked to be of its id


def row_spec(table: Table, seed: int, share: Share = WHOLE) -> _native.RowSpec:
    """The rows of a table, or of a share of it, as native code wants them described."""
    kind, dim = str(table.dtype).removeprefix("torch."), share.dim_of(table.dim)
    place = share.index, share.count, share.column
    return _native.RowSpec(_native.table_key(table.name, seed), dim, kind, table.init.kind, table.init.size, *place)


def native_step(step: RowStep) -> _native.RowStep:
    """A step as native code wants it."""
    numbers = (
        *(step.lr, step.momentum, step.weight_decay, step.eps, step.beta1, step.beta2),
        *(step.l1, step.l2, step.beta, step.weight_bound, step.clip_row_norm, step.grad_scale),
    )
    return _native.RowStep(step.rule.kind, list(map(float, numbers)), step.step)


class NativeStore(Store):
    """Rows in a native table, `native`."""

    def __init__(self, table: Table, seed: int, native: _native.Table, share: Share = WHOLE) -> None:
        super().__init__(table, seed, share)
        self.native = native
        self.nan_rows = 0  # rows left out of a step because their gradient was not finite

    @abstractmethod
    def _find(self, ids: Tensor) -> Tensor:
        """Slots uint32 [n] of ids, read-only."""

    @abstractmethod
    def _place(self, ids: Tensor) -> Tensor:
        """Slots uint32 [n] of ids, which get one where they have none."""

    # -- a step -------------------------------------------------------------------------------------------

    def gather(self, slots: Slots) -> Tensor:
        return self._rows_at(slots.slots)

    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        self.check_rule(step)
        if list(grads.shape) != [len(slots), self.dim]:
            raise ValueError(f"gradients must be {[len(slots), self.dim]}, one per row, got {list(grads.shape)}")
        count, grads, slot = len(slots), grads.float().contiguous(), slots.slots.clone()
        pending = _native.Pending(
            *(_native.TableSet([self.native], [(0, "none", 1)]), _native.BlockLayout([0], [1], [-1])),
            *(slots.ids.data_ptr(), [0, count], 0, 0, count, slot.data_ptr()),
            *(0, 0, [grads.data_ptr()], [], [UNKNOWN]),
        )
        update = _native.RowUpdate([self.native])
        if step.nan == "raise" and not update.finite([pending], [True]):
            raise FloatingPointError(f"table {self.table.name!r}: some rows have a gradient that is not finite")
        [(_, not_finite, _)] = update.apply([pending], [native_step(step)])
        self.stepped(not_finite)
        self.release(slots)

    def stepped(self, not_finite: int) -> None:
        """Native code has taken a step on some rows, and left out those whose gradient was not finite."""
        self.nan_rows += not_finite if self.share.column == 0 else 0  # who has the first columns counts rows

    # -- all rows -----------------------------------------------------------------------------------------

    counted = False  # whether rows have counts

    def capture(self) -> Capture:
        return NativeCapture(self)

    def snapshot(self) -> Snapshot:
        """A copy of everything, as it lies in memory."""
        with self.capture() as now:
            parts = list(now.chunks())
            touched, counts = ([getattr(part, name) for part in parts] for name in ("touched", "counts"))
            data = RowData(
                torch.cat([part.ids for part in parts]),
                torch.cat([part.rows for part in parts]),
                {name: torch.cat([part.state[name] for part in parts]) for name in parts[0].state},
                None if touched[0] is None else torch.cat(touched),
                None if counts[0] is None else torch.cat(counts),
            )
            return Snapshot(data, now.clock, now.rule, now.sketch)

    def _take(self, rule: RowRule | None) -> None:
        if rule != self.rule:
            self.detach() if rule is None else self.attach(rule)

    def _write(self, first: int, part: RowData) -> None:
        """Give the rows from slot `first` on these values, and state that is not among them its fill."""
        rows, columns = part.rows.to(self.dtype).contiguous(), self.rule.state if self.rule else ()
        given = {name: values.float().contiguous() for name, values in part.state.items()}
        states = [given[c.name].data_ptr() if c.name in given else 0 for c in columns]
        self.native.write(first, len(rows), rows.data_ptr(), states)

    def sketch(self) -> Tensor | None:
        """Counts of ids that are not yet let in, uint8, where the table has them."""
        return None

    # -- rows and state by slot ---------------------------------------------------------------------------

    def attach(self, rule: RowRule) -> None:
        self.native.attach([c.width(self.dim) for c in rule.state], [c.fill for c in rule.state])
        self.rule = rule

    def detach(self) -> None:
        self.native.attach([], [])
        self.rule = None

    def read(self, ids: Tensor) -> RowData:
        slots = self._find(self.checked(ids))
        if len(lost := ids[slots.view(torch.int32) == -1]):
            raise ValueError(f"table {self.table.name!r} has no row for id {int(lost[0])}; ids() has those it holds")
        return RowData(ids, self._rows_at(slots), {name: self._state_at(name, slots) for name in self._state_names()})

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.check(ids, rows, state, touched, counts)
        slots = self._place(ids.contiguous())
        values = rows.float().contiguous()
        self.native.scatter(slots.data_ptr(), len(slots), values.data_ptr())
        for place, column in enumerate(self.rule.state if self.rule else ()):
            fill = torch.full((len(ids), column.width(self.dim)), column.fill)
            given = (state or {}).get(column.name, fill).float().contiguous()
            self.native.scatter_state(place, slots.data_ptr(), len(slots), given.data_ptr())

    def _rows_at(self, slots: Tensor) -> Tensor:
        rows = torch.empty(len(slots), self.dim, dtype=torch.float32)
        self.native.gather(slots.data_ptr(), len(slots), rows.data_ptr())
        return rows.to(self.dtype)

    def _state_names(self) -> tuple[str, ...]:
        return self.rule.names if self.rule else ()

    def _state_at(self, name: str, slots: Tensor) -> Tensor:
        """The state [n, dim], or [n] of one number per row, in slots that are not missing."""
        assert self.rule is not None
        place = self.rule.names.index(name)
        column = self.rule.state[place]
        values = torch.empty(len(slots), column.width(self.dim), dtype=torch.float32)
        self.native.gather_state(place, slots.data_ptr(), len(slots), values.data_ptr())
        return values[:, 0] if column.per_row else values

    def __len__(self) -> int:
        return len(self.native)
