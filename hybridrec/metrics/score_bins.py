"""Bins for probabilities: 2,048 per halving of p below one half, mirrored above it.

A bin is the leading bits of the float32 number: of p up to one half, of 1 - p above. So a bin is 1/2048 to 1/4096 of
its p wide (or of 1 - p), which is about as wide in logits at p = 1e-5 as at p = 0.3: the skewed scores of click
models spread over thousands of bins, where equal bins would hold them in a few. Scores below 2**-25 share the first
bin; the last holds 1 alone, as float32 has nothing between it and 1 - 2**-24.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEADING = 11  # bits of the fraction that tell bins apart
_OCTAVES = 24  # halvings from 1/2 down to 2**-25
_SHIFT = 23 - _LEADING
_LOWEST = (127 - 25) << 23  # the bits of 2**-25
_HALF = _OCTAVES << _LEADING  # the bin of one half
BINS = 2 * _HALF + 1


def score_bin(scores: Tensor) -> Tensor:
    """The bin of each score, int64 in [0, BINS), never falling as scores rise.

    >>> score_bin(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 49152, 98304]
    """
    p = scores.float()
    near = torch.minimum(p, 1 - p).abs_()  # no rounding: 1 - p is exact where it is the smaller; -0.0 is 0.0
    place = (near.view(torch.int32) - _LOWEST).clamp_(0, _HALF << _SHIFT) >> _SHIFT
    return torch.where(p > 0.5, 2 * _HALF - place, place).long()


def bin_edges() -> Tensor:
    """The ends of all bins, float64 [BINS + 1]; the middle bin holds one half alone.

    >>> bin_edges()[[0, 49152, 49153, -1]].tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    places = torch.arange(_HALF + 1, dtype=torch.int32)
    lower = ((places << _SHIFT) + _LOWEST).view(torch.float32).double()
    lower[0] = 0.0
    return torch.cat([lower, 1 - lower.flip(0)])
