"""Gradients of a loss that is not finite."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def clear_unless_finite(parameters: Iterable[Tensor], loss: Tensor) -> None:
    """Make all gradients zeros where the loss, on the device, is not finite; nobody waits to know.

    >>> import torch
    >>> weight = torch.ones(2, requires_grad=True)
    >>> weight.grad = torch.tensor([1.0, torch.nan])
    >>> clear_unless_finite([weight], torch.tensor(torch.nan))
    >>> weight.grad
    tensor([0., 0.])
    """
    spoilt = ~loss.isfinite()
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.masked_fill_(spoilt, 0.0)
