"""DenseUpdate: the step of a torch optimizer over all its parameters, one launch for each group."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from hybridrec.ops.dense_update.numbers import RULES
from hybridrec.ops.dense_update.rules import Rule, numbers_of, rule_of
from hybridrec.ops.dense_update.triton import SIZE, update_parameters
from hybridrec.ops.dense_update.unless_finite import clear_unless_finite
from hybridrec.optim.bare import hooked

MOST_TABLES = 16  # gradients that are allocated anew in every step are at one of a few places


class Tensors(NamedTuple):
    """What a step of a group reads and changes: lists with a tensor for each parameter that has a gradient."""

    parameters: list[Tensor]
    grads: list[Tensor]
    kept: list[list[Tensor]]  # a list for each name of the rule
    steps: list[Tensor]  # none where the rule does not count them

    @property
    def changed(self) -> list[Tensor]:
        return [*self.parameters, *chain(*self.kept), *self.steps]

    def some(self, at: Sequence[int]) -> Tensors:
        """Those of some parameters."""
        parameters, grads, steps, *kept = (
            [each[n] for n in at] if each else [] for each in (self.parameters, self.grads, self.steps, *self.kept)
        )
        return Tensors(parameters, grads, kept, steps)


class Known(NamedTuple):
    """Tensors of a group that the kernel takes; memory of gradients is not kept for that.

    The numbers of steps done are read and written by numpy: an operator of torch lets go of the interpreter, which
    other threads may then have for a while.
    """

    changed: list[Tensor]
    grads: list[weakref.ref[Tensor]]
    places: list[int]  # of those numbers: who shares a tensor with other processes moves its memory
    steps: list[np.ndarray]

    def are(self, tensors: Tensors) -> bool:
        """Whether they are these very tensors."""
        mine, theirs = [*self.changed, *(grad() for grad in self.grads)], [*tensors.changed, *tensors.grads]
        same = len(mine) == len(theirs) and all(map(operator.is_, mine, theirs))
        return same and self.places == list(map(Tensor.data_ptr, tensors.steps))


class Part(NamedTuple):
    """Parameters of a group that have done the same number of steps."""

    rule: Rule
    group: Mapping[str, Any]
    tensors: Tensors
    steps: list[np.ndarray]
    done: float  # 0 where the rule does not depend on it


class DenseUpdate:
    """Steps of a torch optimizer that cost one pass over its parameters, and one launch for each group of them.

    All state stays the optimizer's own; results are those of `optimizer.step()` within float order. Adagrad, Adam,
    AdamW and SGD are known. Other optimizers and options, hooks, parameters that are not contiguous float32, and the
    first step of a parameter, which makes its state, are left to torch.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._lines: dict[Any, Tensor] = {}  # int64 [parameters, LINE] on the device, by the numbers there
        self._programs: dict[tuple[int, ...], Tensor] = {}  # int32 [programs, 2]: parameter, first number; by sizes
        self._known: dict[int, Known] = {}  # by the number of a group

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
        if hooked(self.optimizer):
            return None
        found: list[Part] = []
        for number, group in enumerate(self.optimizer.param_groups):
            rule = rule_of(self.optimizer, group)
            if rule is None:
                return None
            tensors = self._tensors(rule, group)
            steps = self._steps_of(number, tensors)
            if steps is None:
                return None
            done = [each.item() for each in steps] if rule.by_step else [0.0] * len(tensors.grads)
            counts = dict.fromkeys(done)
            if len(counts) == 1:
                found.append(Part(rule, group, tensors, steps, done[0]))
                continue
            for count in counts:
                at = [place for place, each in enumerate(done) if each == count]
                found.append(Part(rule, group, tensors.some(at), [steps[n] for n in at], count))
        return found

    def _tensors(self, rule: Rule, group: Mapping[str, Any]) -> Tensors:
        """Those of a group as they are; None where the optimizer has no such state."""
        parameters = [each for each in group["params"] if each.grad is not None]
        states = [self.optimizer.state.get(each, {}) for each in parameters]
        kept: Any = [[state.get(name) for state in states] for name in rule.state]
        steps: Any = [state.get("step") for state in states] if rule.counts else []
        return Tensors(parameters, [each.grad for each in parameters], kept, steps)

    def _steps_of(self, number: int, tensors: Tensors) -> list[np.ndarray] | None:
        """The numbers of steps that parameters of a group have done; None where the kernel does not take them all.

        That is looked at where they are other tensors than in the last step.
        """
        known = self._known.get(number)
        if known is None or not known.are(tensors):
            plain = all(map(_plain, chain(tensors.parameters, tensors.grads, *tensors.kept)))
            if not plain or not all(each is not None and each.device.type == "cpu" for each in tensors.steps):
                return None
            places, steps = [each.data_ptr() for each in tensors.steps], [each.numpy() for each in tensors.steps]
            known = Known(tensors.changed, [weakref.ref(grad) for grad in tensors.grads], places, steps)
            self._known[number] = known
        return known.steps

    def _launch(self, part: Part, loss: Tensor | None) -> None:
        for step in part.steps:
            step[()] += 1
        lines, programs = self._addresses(part.tensors)
        update_parameters[(len(programs),)](
            *(lines, programs, lines if loss is None else loss),
            *numbers_of(part.rule, part.group, part.done + 1),
            RULE=RULES[part.rule.name],  # pyright: ignore[reportArgumentType] (Triton takes plain numbers)
            GUARDED=loss is not None,  # pyright: ignore[reportArgumentType]
            SIZE=SIZE,  # pyright: ignore[reportArgumentType]
        )
        increment_version(part.tensors.changed)

    def _addresses(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Lines and programs of the kernel, sent to the device where they are new."""
        sizes, device = tuple(map(Tensor.numel, tensors.parameters)), tensors.parameters[0].device
        there = tensors.parameters, tensors.grads, *tensors.kept
        key = *(tuple(map(Tensor.data_ptr, each)) for each in there), sizes
        lines = self._lines.get(key)
        if lines is None:
            if len(self._lines) >= MOST_TABLES:
                self._lines.clear()
            nothing = [[0] * len(sizes)] * (2 - len(tensors.kept))
            numbers = list(zip(*key[:-1], *nothing, sizes, strict=True))
            lines = self._lines[key] = _sent(torch.tensor(numbers, pin_memory=device.type == "cuda"), device)
        if sizes not in self._programs:
            made = [(at, first) for at, size in enumerate(sizes) for first in range(0, size, SIZE)]
            self._programs[sizes] = _sent(torch.tensor(made, dtype=torch.int32).view(-1, 2), device)
        return lines, self._programs[sizes]


def _plain(tensor: Any) -> bool:
    """Whether the kernel reads and writes it as it is."""
    plain = isinstance(tensor, Tensor) and tensor.dtype is torch.float32 and tensor.layout is torch.strided
    return plain and tensor.is_contiguous()


def _sent(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device, non_blocking=True)
