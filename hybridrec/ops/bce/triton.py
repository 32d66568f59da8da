"""The loss in two launches, its gradient in one.

A program has BLOCK numbers and leaves their sum; one program adds the sums in a fixed order, so that results repeat
bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4


@triton.jit
def _share(rows, columns, at, there, labels, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ONE: tl.constexpr):
    """What each number counts: the weight of its row times that of its label."""
    share = tl.full(at.shape, 1.0, tl.float32)
    if COLUMNS:
        share = tl.load(columns + at % labels, mask=there, other=0.0)
    elif not ONE:
        share = share / labels
    if ROWS:
        share = share * tl.load(rows + (at if ONE else at // labels), mask=there, other=0.0)
    return share


@triton.jit
def bce_sums(
    x,  # [n], logits
    y,  # [n], labels
    rows,  # [n / labels], weights, if ROWS
    columns,  # [labels], weights, if COLUMNS
    sums,  # [programs]
    n,
    labels,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of a block's cross entropies, each times its weights. Grid: blocks of the numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    logit = tl.load(x + at, mask=there, other=0.0)
    label = tl.load(y + at, mask=there, other=0.0)
    small = tl.exp(-tl.abs(logit))
    one = 1.0 + small  # log(1 + small) by itself would lose a small one
    log1p = tl.where(one == 1.0, small, tl.log(one) * (small / (one - 1.0)))
    loss = (1.0 - label) * logit - (tl.where(logit > 0, 0.0, logit) - log1p)
    loss = loss * _share(rows, columns, at, there, labels, ROWS, COLUMNS, ONE)
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(there, loss, 0.0), 0))


@triton.jit
def bce_total(sums, total, out, count, GIVEN: tl.constexpr, BLOCK: tl.constexpr):
    """All sums over the total, which is a number or, if GIVEN, a place in memory. One program."""
    added = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        added += tl.load(sums + at, mask=at < count, other=0.0)
    tl.store(out, tl.sum(added, 0) / (tl.load(total) if GIVEN else total))


@triton.jit
def bce_gradient(
    x,
    y,
    rows,
    columns,
    grad,  # [], of the loss
    total,
    dx,  # [n]
    n,
    labels,
    GIVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of the logits: sigmoid less label, times weights. Grid: blocks of the numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    logit = tl.load(x + at, mask=there, other=0.0)
    label = tl.load(y + at, mask=there, other=0.0)
    factor = tl.load(grad) / (tl.load(total) if GIVEN else total)
    away = 1.0 / (1.0 + tl.exp(-logit)) - label
    share = _share(rows, columns, at, there, labels, ROWS, COLUMNS, ONE)
    tl.store(dx + at, away * (share * factor), mask=there)


def _kind(x: Tensor, rows: Tensor | None, columns: Tensor | None) -> dict[str, bool | int]:
    return {"ROWS": rows is not None, "COLUMNS": columns is not None, "ONE": x.dim() == 1, "BLOCK": BLOCK}


def _given(x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None) -> tuple[Tensor, ...]:
    return x, y, x if rows is None else rows, x if columns is None else columns


def forward(x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None, total: float | Tensor) -> Tensor:
    """The loss, one number."""
    n, labels = x.numel(), x.shape[-1] if x.dim() == 2 else 1
    sums, out = x.new_empty(triton.cdiv(n, BLOCK)), x.new_empty(())
    if n:
        given = _given(x, y, rows, columns)
        bce_sums[(len(sums),)](*given, sums, n, labels, **_kind(x, rows, columns), num_warps=WARPS)
    bce_total[(1,)](sums, total, out, len(sums), GIVEN=isinstance(total, Tensor), BLOCK=BLOCK, num_warps=WARPS)
    return out


def backward(
    grad: Tensor, x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None, total: float | Tensor
) -> Tensor:
    """The gradient of the logits, for that of the loss."""
    n, labels, dx = x.numel(), x.shape[-1] if x.dim() == 2 else 1, torch.empty_like(x)
    if n:
        bce_gradient[(triton.cdiv(n, BLOCK),)](
            *(*_given(x, y, rows, columns), grad, total, dx, n, labels),
            **_kind(x, rows, columns),
            GIVEN=isinstance(total, Tensor),
            num_warps=WARPS,
        )
    return dx
