"""Row updates in plain PyTorch, the oracle of the fused form. README.md beside this file has the formulas."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf

import torch
from torch import Tensor

from hybridrec.optim.rule import Kind, RowStep

Formula = Callable[[RowStep, Tensor, list[Tensor], Tensor], tuple[Tensor, list[Tensor]]]


def sum_duplicates(slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct slots int64 [U], ascending, and the sums [U, D] of their gradients, added in the order given.

    Missing slots (-1) take no gradient and are left out.

    >>> sum_duplicates(torch.tensor([5, 2, -1, 5]), torch.tensor([[1.0], [2.0], [4.0], [8.0]]))
    (tensor([2, 5]), tensor([[2.],
                             [9.]]))
    """
    known = slots >= 0
    unique, place = slots[known].unique(return_inverse=True)
    sums = grads.new_zeros(len(unique), grads.shape[1])
    return unique, sums.index_add_(0, place, grads[known])


def update_rows(step: RowStep, rows: Tensor, states: list[Tensor], grads: Tensor) -> tuple[Tensor, list[Tensor]]:
    """New rows [U, D] and states ([U, D], or [U] for those per row) after one step with summed gradients [U, D].

    Nothing is changed in place. Rows of half types are given as float32 and rounded by who stores them.
    A row whose scaled gradient is not finite stays as it was, with its state, or raises, as `step.nan` says.
    """
    g = grads * step.grad_scale
    finite = g.isfinite().all(1)
    if step.nan == "raise" and not finite.all():
        raise FloatingPointError(f"{int((~finite).sum())} of {len(rows)} rows have a gradient that is not finite")
    g = _clipped(g, step.clip_row_norm)
    if step.weight_decay:
        g = g + step.weight_decay * rows
    new_rows, new_states = FORMULAS[step.rule.kind](step, rows, states, g)
    if not isinf(step.weight_bound):
        new_rows = new_rows.clamp(-step.weight_bound, step.weight_bound)
    return _where(finite, new_rows, rows), [_where(finite, *pair) for pair in zip(new_states, states, strict=True)]


def _clipped(g: Tensor, bound: float) -> Tensor:
    """Rows no longer than the bound by L2 norm."""
    if isinf(bound):
        return g
    norms = g.norm(dim=1, keepdim=True)
    return torch.where(norms > bound, g * (bound / norms), g)


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new values in these rows [U], the old ones elsewhere."""
    return new.where(rows.view(-1, *[1] * (new.dim() - 1)), old)


def _sgd(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    return w - step.lr * g, []


def _momentum(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    buffer = step.momentum * states[0] + g
    return w - step.lr * buffer, [buffer]


def _nesterov(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    buffer = step.momentum * states[0] + g
    return w - step.lr * (g + step.momentum * buffer), [buffer]


def _adagrad(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    total = states[0] + g * g
    return w - step.lr * g / (total.sqrt() + step.eps), [total]


def _rowwise_adagrad(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    total = states[0] + (g * g).mean(1)  # [U]
    return w - step.lr * g / (total.sqrt() + step.eps)[:, None], [total]


def _adam(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    m = states[0] + (g - states[0]) * (1 - step.beta1)
    v = states[1] + (g * g - states[1]) * (1 - step.beta2)
    return w - step.lr * m / (v.sqrt() + step.eps), [m, v]


def _ftrl(step: RowStep, w: Tensor, states: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    z, n = states
    root = (n + g * g).sqrt()
    z = z + g - (root - n.sqrt()) / step.lr * w
    moved = -(z - z.sign() * step.l1) / ((step.beta + root) / step.lr + step.l2)
    return moved.masked_fill(z.abs() <= step.l1, 0), [z, n + g * g]


FORMULAS: dict[Kind, Formula] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "ftrl": _ftrl,
}
