"""Steps of optimizers without what torch does around them: it tells profilers of each, by operators that take longer
than a small step does, and let go of the interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def hooked(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody wants to be called before or after its steps.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)])
    >>> handle = optimizer.register_step_post_hook(print)
    >>> hooked(optimizer), hooked(torch.optim.SGD([torch.zeros(1)]))
    (True, False)
    """
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return any((_global_optimizer_pre_hooks, _global_optimizer_post_hooks, *own))


def bare_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`, with what is around it where that is more than torch's mark for profilers."""
    step: Any = type(optimizer).step
    if "step" in vars(optimizer) or hooked(optimizer) or not getattr(step, "hooked", False):
        optimizer.step()
    else:
        step.__wrapped__(optimizer)


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.zero_grad()`, by which torch drops them all."""
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        return optimizer.zero_grad()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    return None
