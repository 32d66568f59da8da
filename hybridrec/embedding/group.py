"""TableGroup: tables in native memory that are updated together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hybridrec import _native
from hybridrec.embedding.native_store import NativeStore, native_step
from hybridrec.embedding.queue import FeatureSpec, GradientQueue, QueuedCall
from hybridrec.ops.pooled_lookup.op import Lookup
from hybridrec.optim.rule import RowRule, RowStep


class TableGroup(GradientQueue[NativeStore]):
    """Tables with one queue of gradients: lookups fill it in their backward, `step` empties it in one fused pass.

    Row optimizers claim the tables; see `hybridrec.optim.group.RowGroup` for what they ask.
    """

    def __init__(self, stores: Mapping[str, Any], trainable: set[str]) -> None:
        super().__init__(stores, trainable)
        self.natives = [store.native for store in self.stores.values()]
        self._awaited: dict[str, int] = {}  # dynamic tables: the clock at which rows were pinned for a gradient
        self._update = _native.RowUpdate(self.natives)

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Lookup:
        """What looks up these features, and queues their gradients here; `remedy` is advice for an id out of range."""
        return Lookup(self, features, remedy)

    def __reduce__(self) -> tuple:
        return TableGroup, (self.stores, set(self.handles))  # a copy has the rows, but no gradients and no optimizer

    # -- the queue ----------------------------------------------------------------------------------------

    def looked_up(self, tables: Iterable[str], gradients: bool) -> None:
        """A training lookup of dynamic tables is done: rows stay for the step if a gradient may come, or may go."""
        for name in tables:
            clock = self.stores[name].clock
            if gradients and name in self.handles:
                self._awaited[name] = clock
            elif self._awaited.get(name) != clock:
                self.stores[name].advance()

    def finite(self, names: Iterable[str]) -> bool:
        """Whether all queued gradients of these tables are finite."""
        wanted = set(names)
        calls = [call.work for call in self._calls(wanted)]
        return self._update.finite(calls, [name in wanted for name in self.names])

    # -- the step -----------------------------------------------------------------------------------------

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        """The L2 norm of the summed row gradients of these tables together, each times its step's grad_scale."""
        plain = RowStep(rule=RowRule("sgd"), lr=0.0, step=1)
        scales = {name: steps[name].grad_scale if steps else 1.0 for name in names}
        results = self._apply(self._calls(set(scales)), dict.fromkeys(scales, plain), norm_only=True)
        if any(results[name][1] for name in scales):
            return math.inf
        return math.sqrt(sum(results[name][2] * scale**2 for name, scale in scales.items()))

    def step(self, steps: Mapping[str, RowStep]) -> None:
        """Update the tables named, in one pass over all of them, and empty their queues."""
        self.refuse(steps)
        calls = self._calls(set(steps))
        wholes = self.whole_rows(calls, steps)
        for name, (_, not_finite, _) in self._apply(calls, steps, norm_only=False, wholes=wholes).items():
            self.stores[name].stepped(not_finite)
        self._let_go(calls, set(steps))

    def whole_rows(self, calls: list[QueuedCall], steps: Mapping[str, RowStep]) -> Mapping[str, _native.WholeRows]:
        """What rows add up to, by table, where a step needs more columns of them than are here: nowhere."""
        return {}

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        """Raise if a step that says so would have to leave out rows; changes nothing."""
        strict = {name: step for name, step in steps.items() if step.nan == "raise"}
        results = self._apply(self._calls(set(strict)), strict, norm_only=True) if strict else {}
        for name, (_, not_finite, _) in results.items():
            if not_finite:
                raise FloatingPointError(
                    f"table {name!r} has gradients that are not finite, of {not_finite} rows; nothing was changed. "
                    "Find their cause, or leave such rows out with nan='skip'"
                )

    def _apply(
        self,
        calls: list[QueuedCall],
        steps: Mapping[str, RowStep],
        norm_only: bool,
        wholes: Mapping[str, _native.WholeRows] | None = None,
    ) -> dict[str, tuple[int, int, float]]:
        given = [wholes.get(name) for name in self.names] if wholes else []
        results = self._update.apply([call.work for call in calls], self._native_steps(steps), norm_only, given)
        return {name: result for name, result in zip(self.names, results, strict=True) if name in steps}

    def _native_steps(self, steps: Mapping[str, RowStep]) -> list[_native.RowStep | None]:
        """One for each table of the group, to be used now."""
        _native.set_threads(torch.get_num_threads())
        made = {key: native_step(step) for key, step in {id(step): step for step in steps.values()}.items()}
        return [made[id(steps[name])] if name in steps else None for name in self.names]

    def _calls(self, tables: set[str]) -> list[QueuedCall]:
        calls = [call for call in self._queue if call.left & tables]
        for call in calls:
            call.check()
            if len(call.left) < len(self.handles):
                call.work.wanted = [name in call.left for name in self.names]
        return calls
