"""RowOptimizer: what all row optimizers have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import hypot, inf
from operator import itemgetter
from typing import Any, NoReturn

import torch
from torch._compile import _disable_dynamo

from hybridrec.optim import state
from hybridrec.optim.group import RowGroup
from hybridrec.optim.options import RowOptions, Values, check_values, defaults_of, overridden
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.optim.tables import Model, TableRef, by_group, choose, expect_state, find_tables


class RowOptimizer(torch.optim.Optimizer):
    """Updates the rows of the tables in a model: those that have a gradient since the last step, and no others.

    `backward()` queues gradients, over as many calls as you like; `step()` sums them per row and updates each row once.
    There is a param group per table, called by its name, whose values (`group["lr"]`) may change between steps, by hand
    or by a scheduler of torch. `torch.amp.GradScaler` works as with any other optimizer. A table belongs to one row
    optimizer at a time; `release()` sets its tables free.
    """

    _step_supports_amp_scaling = True  # GradScaler then leaves unscaling, and skipping a step, to step()

    def __init__(self, model: Model, own: Values, options: RowOptions) -> None:
        defaults = defaults_of(type(self).__name__, own, options)
        self._complete = False
        self._tables: dict[str, TableRef] = {}
        self._rules: dict[str, RowRule] = {}
        self._counts: dict[str, int] = {}  # steps by table
        self._by_group: list[tuple[RowGroup, list[TableRef]]] = []
        self._dynamic: list[TableRef] = []
        self._read = itemgetter(*defaults)  # a group's values
        tables = choose(find_tables(model), options.get("tables"))
        values = overridden(defaults, options.get("overrides"), tables)
        for name in tables:
            self.check(name, values[name])
        groups = [{"params": [ref.handle], "name": name, **values[name]} for name, ref in tables.items()]
        super().__init__(groups, defaults)
        self._complete = True
        self._claim(tables)

    # -- what a kind of optimizer says ----------------------------------------------------------------------

    @abstractmethod
    def rule(self, values: Values) -> RowRule:
        """The formula for a table with these values, and the state it needs."""

    @abstractmethod
    def numbers(self, values: Values, step: int, rule: RowRule) -> dict[str, float]:
        """The numbers of the formula, as `RowStep` has them, at a step of the table (1 is the first).

        `rule` is what the table was made for; values that have come to ask for another one are refused here.
        """

    def check(self, table: str, values: Values) -> None:
        """Refuse values that make no sense."""
        check_values(table, values)

    # -- a step ---------------------------------------------------------------------------------------------

    @_disable_dynamo  # as optimizers of torch do: torch.compiler.disable would load the compiler on import
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every row that has queued gradients, and empty the queue; returns what the closure returned.

        Where a `GradScaler` found an overflow, nothing is updated and the queued gradients are discarded.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if float(getattr(self, "found_inf", 0.0)):
            self.zero_grad()
        moving = self._pending()
        self._update(moving)
        moved = {id(ref) for _, refs in moving for ref in refs}
        for ref in self._dynamic:
            if id(ref) not in moved:  # those that move do so by themselves
                ref.store.advance()
        return loss

    def _update(self, moving: list[tuple[RowGroup, list[TableRef]]]) -> None:
        loss_scale = getattr(self, "grad_scale", None)  # set by GradScaler where it has not unscaled
        unscale = 1.0 if loss_scale is None else 1.0 / float(loss_scale)
        parts = [(group, refs, self._steps(refs, unscale)) for group, refs in moving]
        if len(parts) > 1 and any(step.nan == "raise" for *_, steps in parts for step in steps.values()):
            for group, _, steps in parts:  # before any of them changes
                group.refuse(steps)
        for group, refs, steps in parts:
            group.step(steps)
            for ref in refs:
                self._counts[ref.name] = steps[ref.table].step
                ref.handle.clear()

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the queued gradients."""
        self._open()
        for group, refs in self._by_group:
            group.discard([ref.table for ref in refs])
            for ref in refs:
                ref.handle.clear()

    def _pending(self) -> list[tuple[RowGroup, list[TableRef]]]:
        """The tables that have gradients, by group."""
        self._open()
        found = []
        for group, refs in self._by_group:
            waiting = group.waiting()
            if moving := [ref for ref in refs if ref.table in waiting]:
                found.append((group, moving))
        return found

    def _steps(self, refs: list[TableRef], unscale: float = 1.0) -> dict[str, RowStep]:
        """The next step of each of these tables, by its name in their group."""
        groups = {group["name"]: group for group in self.param_groups}
        made: dict[tuple[Any, ...], RowStep] = {}  # tables with equal values share one: there may be hundreds
        steps, last, step = {}, None, None
        for ref in refs:
            name, values = ref.name, groups[ref.name]
            key = (id(self._rules[name]), self._counts.get(name, 0), ref.handle.scale, self._read(values))
            if key != last:  # as a rule all are the same, and to compare them takes less than to look one up
                step, last = made.get(key), key  # equal rules are one object
            if step is None:
                step = made[key] = self._step_of(ref, values, unscale)
            steps[ref.table] = step
        return steps

    def _step_of(self, ref: TableRef, values: Values, unscale: float) -> RowStep:
        rule, step = self._rules[ref.name], self.steps_of(ref.name) + 1
        return RowStep(
            rule=rule,
            step=step,
            grad_scale=ref.handle.scale * unscale,
            weight_bound=inf if values["weight_bound"] is None else values["weight_bound"],
            clip_row_norm=inf if values["clip_row_norm"] is None else values["clip_row_norm"],
            nan=values["nan"],
            **self.numbers(values, step, rule),
        )

    # -- its gradients, as one vector -----------------------------------------------------------------------

    def grad_norm(self) -> float:
        """The L2 norm of all queued gradients, summed per row."""
        parts = self._pending()
        return hypot(*(group.norm([ref.table for ref in refs], self._steps(refs)) for group, refs in parts))

    def scale_grads(self, factor: float) -> None:
        """Multiply all queued gradients by a factor, which counts until they are used or discarded."""
        for _, refs in self._pending():
            for ref in refs:
                ref.handle.multiply(factor)

    # -- its tables -----------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables it updates."""
        return tuple(self._tables)

    def steps_of(self, table: str) -> int:
        """How many steps have updated the table."""
        return self._counts.get(table, 0)

    def release(self) -> None:
        """Set its tables free for another optimizer, and drop their state; it cannot be used any more."""
        for ref in self._tables.values():
            ref.group.release(ref.table, self)
        for kept in (self._tables, self._by_group, self._dynamic):
            kept.clear()

    def _claim(self, tables: dict[str, TableRef]) -> None:
        """Take the tables, all or none."""
        try:
            same: dict[RowRule, RowRule] = {}
            made = {group["name"]: self.rule(group) for group in self.param_groups}
            rules = {name: same.setdefault(rule, rule) for name, rule in made.items()}
            expect_state([(tables[name].store, rule) for name, rule in rules.items()])
            for name, rule in rules.items():
                tables[name].group.claim(tables[name].table, rule, self)
                self._tables[name], self._rules[name] = tables[name], rule
            self._by_group = by_group(self._tables.values())
            self._dynamic = [ref for ref in self._tables.values() if ref.store.table.dynamic]
        except BaseException:
            self.release()
            raise

    def _open(self) -> dict[str, TableRef]:
        if not self._tables:
            raise RuntimeError(f"this {type(self).__name__} has released its tables; make a new one")
        return self._tables

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused, except to the constructor: the groups are the tables of the model."""
        if self._complete:
            raise TypeError(
                f"{type(self).__name__} has a group for each table of its model, and no others can be added; make "
                "another optimizer for another model, and use torch.optim for parameters"
            )
        super().add_param_group(param_group)

    # -- its state ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state by table and the values of the groups, as plain tensors and numbers.

        Under "state" each table has its "step" and the columns of its rule by row, [n, dim] or [n]; for a dynamic table
        also the "ids" of the rows.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = {
            "state": {name: state.read(ref.store, self.steps_of(name)) for name, ref in self._open().items()},
            "param_groups": [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups],
        }
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()` of the same kind of optimizer for the same tables.

        It is checked first: where it does not fit, nothing changes. Rows of dynamic tables are found by id, so load
        the model before its optimizer.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        groups = state.groups_by_table(state_dict, self._open(), self.defaults)
        for name, ref in self._tables.items():
            self.check(name, groups[name])
            state.check(name, state_dict["state"][name], ref.store, self._rules[name])
        for group in self.param_groups:
            name = group["name"]
            group.update(groups[name])
            self._counts[name] = state.write(state_dict["state"][name], self._tables[name].store)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, it belongs to its tables; use state_dict()"
        )
