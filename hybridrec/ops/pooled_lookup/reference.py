"""Pooled lookup in plain PyTorch: differentiable in the rows and the weights, the oracle of the fused form.

README.md beside this file has the formulas and their gradients.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Combiner = Literal["sum", "mean", "sqrtn", "max", "none"]
COMBINERS: tuple[Combiner, ...] = get_args(Combiner)


def pool(
    rows: Tensor, slots: Tensor, offsets: Tensor, weights: Tensor | None, combiner: Combiner, group: int = 1
) -> Tensor:
    """Bags of rows combined: [B, D] from rows [R, D], slots int64 [N] (-1 is missing), offsets int64 [B + 1].

    "none" gives the weighted rows themselves, [N, D]. With `group` g every id stands as g slots in a row, whose
    rows add up: divisors count ids, and "none" gives [N / g, D]. Half types are computed in float32.

    >>> rows = torch.tensor([[0.0, 3.0], [1.0, 5.0], [7.0, 2.0]])
    >>> pool(rows, torch.tensor([1, 2, 2, 0]), torch.tensor([0, 3, 3, 4]), None, "mean")
    tensor([[5., 3.],
            [0., 0.],
            [0., 3.]])
    """
    _check(combiner, group)
    entries = _gather(rows, slots)  # [N, D]
    weights = entries.new_ones(len(slots)) if weights is None else weights.to(entries.dtype)
    entries = entries * weights[:, None]
    if combiner == "none":
        return entries.unflatten(0, (-1, group)).sum(1) if group > 1 else entries
    bags, count = _bags(offsets), len(offsets) - 1
    if combiner == "max":
        return _max(entries, bags, count)
    total = _sum(entries, bags, count)
    return total if combiner == "sum" else _divide(total, _divisor(weights, bags, count, combiner, group))


def _check(combiner: str, group: int) -> None:
    if combiner not in COMBINERS:
        raise ValueError(f"combiner {combiner!r} is unknown; choose one of {', '.join(COMBINERS)}")
    if combiner == "max" and group > 1:
        raise ValueError(f"combiner 'max' has no meaning for ids of {group} rows each; choose sum, mean or sqrtn")


def _gather(rows: Tensor, slots: Tensor) -> Tensor:
    """The rows of the slots, zeros for missing ones, in float32 at least."""
    known = (slots >= 0).nonzero().squeeze(1)
    kind = torch.promote_types(rows.dtype, torch.float32)
    found = rows.index_select(0, slots[known]).to(kind)
    return found.new_zeros(len(slots), rows.shape[1]).index_copy(0, known, found)


def _bags(offsets: Tensor) -> Tensor:
    """The bag of every entry, int64 [N]."""
    return torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff())


def _sum(entries: Tensor, bags: Tensor, count: int) -> Tensor:
    return entries.new_zeros(count, *entries.shape[1:]).index_add(0, bags, entries)


def _divisor(weights: Tensor, bags: Tensor, count: int, combiner: Combiner, group: int) -> Tensor:
    """What a bag's sum is divided by, [B]; 0 stays 0, without a gradient that a root of 0 would make infinite."""
    if combiner == "mean":
        return _sum(weights, bags, count) / group
    squares = _sum(weights.square(), bags, count) / group
    return squares.where(squares != 0, 1).sqrt().where(squares != 0, 0)


def _divide(total: Tensor, divisor: Tensor) -> Tensor:
    """The quotient, and zeros where the divisor is 0."""
    empty = (divisor == 0)[:, None]
    return (total / divisor[:, None].masked_fill(empty, 1)).masked_fill(empty, 0)


def _max(entries: Tensor, bags: Tensor, count: int) -> Tensor:
    """The largest entry of each bag per column, taken from the first place that has it; a NaN is the largest."""
    places = bags[:, None].expand_as(entries)
    largest = entries.detach().new_zeros(count, entries.shape[1])
    largest = largest.scatter_reduce(0, places, entries.detach(), "amax", include_self=False)
    wins = (entries == largest[bags]) | entries.isnan()
    order = torch.arange(len(entries), device=entries.device)[:, None].expand_as(entries)
    first = torch.full_like(largest, len(entries), dtype=torch.int64)
    first = first.scatter_reduce(0, places, order.where(wins, len(entries)), "amin")
    padded = torch.cat([entries, entries.new_zeros(1, entries.shape[1])])  # the last row is that of empty bags
    return padded.gather(0, first)
