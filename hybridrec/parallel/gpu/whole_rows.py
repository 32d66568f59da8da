"""Whole rows: the step of rows whose columns lie on the GPUs of several ranks, where it must see all of a row.

Each holder measures its own columns, sums are added up over holders (`column_sums.py`), and what comes of them is put
into the gradients: a kernel that knows no other columns then takes the step.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import torch
from torch import Tensor

from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.parallel.column_sums import sums_of


def measured(step: RowStep, grads: Tensor, weights: Tensor) -> Tensor:
    """What the columns here of rows [U, D] add up to, float64 [U, n]: as `ops/row_update/README.md` has it.

    >>> step = RowStep(rule=RowRule("sgd"), lr=0.1, step=1)
    >>> measured(step, torch.tensor([[3.0, 4.0], [inf, 1.0]]), torch.zeros(2, 2))
    tensor([[25.],
            [nan]], dtype=torch.float64)
    """
    g, finite = grads.double(), (grads * step.grad_scale).isfinite().all(1)
    found = [g.square().sum(1).where(finite, nan)]
    if sums_of(step) > 1:
        w = weights.double()
        found += [(g * w).sum(1), w.square().sum(1)]
    return torch.stack(found, 1)


def factors(step: RowStep, squares: Tensor) -> Tensor:
    """What summed gradients are multiplied by, given the squares of whole rows; NaN where one is not finite.

    >>> step = RowStep(rule=RowRule("sgd"), lr=0.1, step=1, grad_scale=0.5, clip_row_norm=1.0)
    >>> factors(step, torch.tensor([1.0, 25.0, nan]))
    tensor([0.5000, 0.2000,    nan])
    """
    short = squares * step.grad_scale**2 <= step.clip_row_norm**2
    clipped = step.clip_row_norm if step.clip_row_norm < inf else nan
    return torch.where(short, step.grad_scale, clipped / squares.sqrt()).float()


def one_by_one(step: RowStep) -> RowStep:
    """The step that is left for columns by themselves, once `factors` are in their gradients."""
    alone = replace(step, grad_scale=1.0, clip_row_norm=inf)
    return replace(alone, rule=RowRule("sgd"), weight_decay=0.0) if _of_rows(step) else alone


def seen_whole(
    step: RowStep, sums: Tensor, grads: Tensor, weights: Tensor, state: Tensor | None, dim: int
) -> tuple[Tensor, Tensor | None]:
    """Gradients [U, D] for `one_by_one`, NaN for rows that stay as they are; and the new state [U] of whole rows.

    `sums` are those over all `dim` columns, `state` is there where the rule keeps one number for a row.
    """
    factor = factors(step, sums[:, 0])
    given = grads * factor[:, None]
    if state is None:
        return given.masked_fill(factor.isnan()[:, None], nan), None
    decay, f = step.weight_decay, factor.double()
    squares = f**2 * sums[:, 0]
    if decay:
        squares = squares + 2 * f * decay * sums[:, 1] + decay**2 * sums[:, 2]
    moved = state + (squares.clamp(min=0) / dim).float()
    given = (given + decay * weights) / (moved.sqrt() + step.eps)[:, None]
    return given.masked_fill(factor.isnan()[:, None], nan), moved.where(~factor.isnan(), state)


def _of_rows(step: RowStep) -> bool:
    return any(column.per_row for column in step.rule.state)
