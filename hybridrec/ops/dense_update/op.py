"""DenseUpdate: the step of a torch optimizer over all its parameters, one launch for each group."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hybridrec.ops.dense_update.numbers import RULES, of
from hybridrec.ops.dense_update.rules import Rule, numbers_of, rule_of
from hybridrec.ops.dense_update.triton import SIZE, update_parameters
from hybridrec.ops.dense_update.unless_finite import clear_unless_finite

MOST_TABLES = 16  # gradients that are allocated anew in every step are at one of a few places


class Part(NamedTuple):
    """Parameters of a group that have done the same number of steps, and what the optimizer keeps of each."""

    rule: Rule
    group: Mapping[str, Any]
    done: float
    parameters: list[Tensor]
    states: list[Mapping[str, Tensor]]


class _Done(NamedTuple):
    """How many steps a tensor says were done, and which version of it says so."""

    step: Tensor
    version: int
    count: float


class DenseUpdate:
    """Steps of a torch optimizer that cost one pass over its parameters, and one launch for each group of them.

    All state stays the optimizer's own; results are those of `optimizer.step()` within float order. Adagrad, Adam,
    AdamW and SGD are known. Other optimizers and options, hooks, parameters that are not contiguous float32, and the
    first step of a parameter, which makes its state, are left to torch.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._lines: dict[tuple[int, ...], Tensor] = {}  # int64 [parameters, LINE] on the device, by its numbers
        self._programs: dict[tuple[int, ...], Tensor] = {}  # int32 [programs, 2]: parameter, first number; by sizes
        self._known: dict[int, tuple[Any, ...]] = {}  # by id, parameters with their state that the kernel takes
        self._done: dict[int, _Done] = {}  # by id, parameters with their steps

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
                if not self._takes(rule, parameter, state):
                    return None
                done = self._steps_done(parameter, state["step"]) if rule.by_step else 0.0
                part = by_steps.get(done)
                if part is None:
                    part = by_steps[done] = Part(rule, group, done, [], [])
                part.parameters.append(parameter)
                part.states.append(state)
            found += by_steps.values()
        return found

    def _steps_done(self, parameter: Tensor, step: Tensor) -> float:
        """The steps that a parameter has done; asked of the tensor only where somebody else has changed it.

        Who asks a tensor lets go of the interpreter, and may have to wait for others to get it back.
        """
        known = self._done.get(id(parameter))
        if known is None or known.step is not step or known.version != step._version:
            known = self._done[id(parameter)] = _Done(step, step._version, step.item())
        return known.count

    def _takes(self, rule: Rule, parameter: Tensor, state: Mapping[str, Any]) -> bool:
        """Whether the kernel takes a parameter, its gradient and its state as they are."""
        grad, kept = parameter.grad, tuple(state.get(name) for name in rule.state)
        if not _plain(grad):
            return False
        known = self._known.get(id(parameter))
        if known is not None and known[0] is parameter and all(map(operator.is_, kept, known[1:])):
            return True
        counted = not rule.counts or ("step" in state and state["step"].device.type == "cpu")
        if not counted or not all(map(_plain, (parameter, *kept))):
            return False
        self._known[id(parameter)] = parameter, *kept
        return True

    def _launch(self, part: Part, loss: Tensor | None) -> None:
        if part.rule.counts:
            steps = [state["step"] for state in part.states]
            torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
            for parameter, step in zip(part.parameters, steps, strict=True) if part.rule.by_step else ():
                self._done[id(parameter)] = _Done(step, step._version, part.done + 1)
        lines, programs = self._addresses(part)
        update_parameters[(len(programs),)](
            *(lines, programs, lines if loss is None else loss),
            *numbers_of(part.rule, part.group, part.done + 1),
            RULE=RULES[part.rule.name],  # pyright: ignore[reportArgumentType] (Triton takes plain numbers)
            GUARDED=loss is not None,  # pyright: ignore[reportArgumentType]
            SIZE=SIZE,  # pyright: ignore[reportArgumentType]
        )
        increment_version([*part.parameters, *(s[name] for s in part.states for name in part.rule.state)])

    def _addresses(self, part: Part) -> tuple[Tensor, Tensor]:
        """Lines and programs of the kernel, sent to the device where they are new."""
        numbers: list[int] = []
        for parameter, state in zip(part.parameters, part.states, strict=True):
            kept = [state[name].data_ptr() for name in part.rule.state]
            grad: Any = parameter.grad
            numbers += (parameter.data_ptr(), grad.data_ptr(), *kept, *[0] * (2 - len(kept)), parameter.numel())
        key, device = tuple(numbers), part.parameters[0].device
        lines = self._lines.get(key)
        if lines is None:
            if len(self._lines) >= MOST_TABLES:
                self._lines.clear()
            lines = self._lines[key] = _sent(torch.tensor(numbers, pin_memory=device.type == "cuda"), device)
        sizes = key[of.COUNT :: of.LINE]
        if sizes not in self._programs:
            made = [(at, first) for at, size in enumerate(sizes) for first in range(0, size, SIZE)]
            self._programs[sizes] = _sent(torch.tensor(made, dtype=torch.int32).view(-1, 2), device)
        return lines, self._programs[sizes]


def _plain(tensor: Any) -> bool:
    """Whether the kernel reads and writes it as it is."""
    plain = isinstance(tensor, Tensor) and tensor.dtype == torch.float32 and tensor.layout == torch.strided
    return plain and tensor.is_contiguous()


def _sent(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device, non_blocking=True)
