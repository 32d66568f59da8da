"""What a step of a torch optimizer is in numbers, for those that the kernel knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

NOT_KNOWN = ("amsgrad", "maximize", "differentiable", "capturable", "fused")  # options; their steps are torch's own


class Rule(NamedTuple):
    """A rule by its name, and what it keeps of a parameter."""

    name: str
    state: tuple[str, ...]
    counts: bool = True  # whether the state has the number of the step
    by_step: bool = True  # whether the numbers depend on it


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Rule | None:
    """The rule of a group's steps; None where it is not known here.

    >>> adam = torch.optim.Adam([torch.zeros(1)])
    >>> rule_of(adam, adam.param_groups[0])
    Rule(name='adam', state=('exp_avg', 'exp_avg_sq'), counts=True, by_step=True)
    >>> rule_of(adam, {**adam.param_groups[0], "amsgrad": True})
    """
    kind = type(optimizer)
    if any(group.get(option) for option in NOT_KNOWN) or any(isinstance(value, Tensor) for value in group.values()):
        return None
    if kind is torch.optim.Adagrad:
        return Rule("adagrad", ("sum",), by_step=group["lr_decay"] != 0)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        return Rule("adamw" if group.get("decoupled_weight_decay") else "adam", ("exp_avg", "exp_avg_sq"))
    if kind is torch.optim.SGD:
        if not group["momentum"]:
            return Rule("sgd", (), counts=False, by_step=False)
        return Rule("nesterov" if group["nesterov"] else "momentum", ("momentum_buffer",), counts=False, by_step=False)
    return None


def numbers_of(rule: Rule, group: Mapping[str, Any], step: float) -> tuple[float, ...]:
    """lr, eps, decay, keep, first, second, correction: as the kernel takes them, in step 1, 2, …

    >>> numbers_of(Rule("adagrad", ("sum",)), {"lr": 0.5, "lr_decay": 1.0, "eps": 0.25, "weight_decay": 0}, 2)
    (0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0)
    """
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    if rule.name == "adagrad":
        return lr / (1 + (step - 1) * group["lr_decay"]), float(group["eps"]), decay, 0.0, 0.0, 0.0, 0.0
    if rule.name in ("adam", "adamw"):
        beta1, beta2 = group["betas"]
        if rule.name == "adamw":
            decay = 1 - lr * decay
        lr /= 1 - beta1**step
        return lr, float(group["eps"]), decay, beta2, 1 - beta1, 1 - beta2, math.sqrt(1 - beta2**step)
    return lr, 0.0, decay, float(group["momentum"]), 1.0 - group["dampening"], 0.0, 0.0
