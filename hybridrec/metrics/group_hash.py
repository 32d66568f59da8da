"""A hash that picks groups: the same ones on every rank, in any order, in proportion to a power of one half."""

from __future__ import annotations

from torch import Tensor


def picked(groups: Tensor, halvings: int) -> Tensor:
    """A mask of the groups that remain after `halvings`; each keeps half of those the one before kept.

    >>> import torch
    >>> int(picked(torch.arange(100_000), 2).sum())
    25209
    """
    mixed = _mixed(groups)
    return mixed & ((1 << halvings) - 1) == 0


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64, in int64 that wraps."""
    x = x + (0x9E3779B97F4A7C15 - (1 << 64))  # without it group 0 would be picked always
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _right(x, shift)) * (factor - (1 << 64))
    return x ^ _right(x, 31)


def _right(x: Tensor, shift: int) -> Tensor:
    """The shift that fills with zeros."""
    return (x >> shift) & ((1 << (64 - shift)) - 1)
