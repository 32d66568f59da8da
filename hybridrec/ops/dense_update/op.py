"""DenseUpdate: the step of a torch optimizer over all its parameters, one launch for each group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hybridrec.ops.dense_update import numbers as of
from hybridrec.ops.dense_update.rules import Rule, numbers_of, rule_of
from hybridrec.ops.dense_update.triton import SIZE, update_parameters
from hybridrec.ops.dense_update.unless_finite import clear_unless_finite

MOST_TABLES = 16  # gradients that are allocated anew in every step are at one of a few places


class Table(NamedTuple):
    """The addresses of some parameters, on the device."""

    lines: Tensor  # int64 [parameters, LINE]
    programs: Tensor  # int32 [programs, 2]: the parameter, and its first number


class Part(NamedTuple):
    """Parameters of a group that have done the same number of steps, and what the optimizer keeps of each."""

    rule: Rule
    group: Mapping[str, Any]
    parameters: list[Tensor]
    states: list[Mapping[str, Tensor]]
    done: float


class DenseUpdate:
    """Steps of a torch optimizer that cost one pass over its parameters, and one launch for each group of them.

    All state stays the optimizer's own; results are those of `optimizer.step()` within float order. Adagrad, Adam,
    AdamW and SGD are known. Other optimizers and options, hooks, parameters that are not contiguous float32, and the
    first step of a parameter, which makes its state, are left to torch.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._tables: dict[tuple[int, ...], Table] = {}

    @torch.no_grad()
    def step(self, loss: Tensor | None = None) -> None:
        """One step by the gradients that are there; nothing changes where `loss`, on the device, is not finite."""
        parts = self._parts()
        if parts is None:
            if loss is not None:
                clear_unless_finite((p for group in self.optimizer.param_groups for p in group["params"]), loss)
            self.optimizer.step()
            return
        for part in parts:
            self._launch(part, loss)
        self.optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue] (schedulers look for it)

    def _parts(self) -> list[Part] | None:
        """What has gradients, by group and number of steps done; None where the step is for torch."""
        own = self.optimizer._optimizer_step_pre_hooks, self.optimizer._optimizer_step_post_hooks
        if any((_global_optimizer_pre_hooks, _global_optimizer_post_hooks, *own)):
            return None
        found: list[Part] = []
        for group in self.optimizer.param_groups:
            rule = rule_of(self.optimizer, group)
            if rule is None:
                return None
            by_steps: dict[float, Part] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.optimizer.state.get(parameter, {})
                done = _done(rule, parameter, state)
                if done is None:
                    return None
                part = by_steps.setdefault(done, Part(rule, group, [], [], done))
                part.parameters.append(parameter)
                part.states.append(state)
            found += by_steps.values()
        return found

    def _launch(self, part: Part, loss: Tensor | None) -> None:
        for state in part.states if part.rule.counts else ():
            state["step"].add_(1)
        table = self._table(part)
        update_parameters[(len(table.programs),)](
            *table,
            table.lines if loss is None else loss,
            *numbers_of(part.rule, part.group, part.done + 1),
            RULE=of.RULES[part.rule.name],  # pyright: ignore[reportArgumentType] (Triton takes plain numbers)
            GUARDED=loss is not None,  # pyright: ignore[reportArgumentType]
            SIZE=SIZE,  # pyright: ignore[reportArgumentType]
        )
        increment_version([*part.parameters, *(s[name] for s in part.states for name in part.rule.state)])

    def _table(self, part: Part) -> Table:
        """The addresses, sent to the device where they are new."""
        lines: list[int] = []
        for parameter, state in zip(part.parameters, part.states, strict=True):
            kept = [state[name].data_ptr() for name in part.rule.state]
            grad: Any = parameter.grad
            lines += (parameter.data_ptr(), grad.data_ptr(), *kept, *[0] * (2 - len(kept)), parameter.numel())
        key = tuple(lines)
        if key not in self._tables:
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            self._tables[key] = _sent(lines, part.parameters)
        return self._tables[key]


def _done(rule: Rule, parameter: Tensor, state: Mapping[str, Any]) -> float | None:
    """The steps that a parameter has behind it, 0 where that does not matter; None where it is for torch."""
    tensors = [parameter, parameter.grad, *(state.get(name) for name in rule.state)]
    if not all(isinstance(t, Tensor) and t.dtype == torch.float32 and t.layout == torch.strided for t in tensors):
        return None
    if not all(t.is_contiguous() and t.device == parameter.device for t in tensors):
        return None
    if not rule.counts:
        return 0.0
    return float(state["step"]) if state["step"].device.type == "cpu" else None


def _sent(lines: list[int], parameters: list[Tensor]) -> Table:
    device = parameters[0].device
    programs = [(at, first) for at, each in enumerate(parameters) for first in range(0, each.numel(), SIZE)]
    made = torch.tensor(lines).view(-1, of.LINE.value), torch.tensor(programs, dtype=torch.int32).view(-1, 2)
    if device.type == "cpu":
        return Table(*made)
    return Table(*(each.pin_memory().to(device, non_blocking=True) for each in made))
