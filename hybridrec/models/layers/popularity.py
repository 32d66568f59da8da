"""Popularity: how often ids come, estimated from the stream of batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hybridrec.parallel.ranks import ranks

_ODD = (-7046029254386353131, -4417276706812531889)  # golden ratio and a prime of XXH64, as int64


class Popularity(nn.Module):
    """The share of training rows that hold an id, by counts in a sketch of two lines.

    In training mode a batch is counted before it is answered, so no id has a share of 0. The counts are buffers. Ids
    that share a counter in both lines are counted together: shares are never too small, and with more `buckets` than
    ids seldom too large. An id that was never counted has the share of one row.

    >>> popularity = Popularity(buckets=1024)
    >>> popularity(torch.tensor([7, 7, 9, 5]))
    tensor([0.5000, 0.5000, 0.2500, 0.2500])
    """

    counts: Tensor
    total: Tensor

    def __init__(self, buckets: int = 2**18) -> None:
        super().__init__()
        if buckets < 2 or buckets & (buckets - 1):
            raise ValueError(f"buckets is {buckets}; it must be a power of two, such as 262144")
        self.bits = buckets.bit_length() - 1
        self.register_buffer("counts", torch.zeros(2, buckets, dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        """The shares [B] of ids [B], which are counted in training mode: of all ranks, where several train."""
        if self.training:
            together = ranks()
            self.count(ids if together is None else torch.cat(together.gathered(ids)))
        return self.shares(ids)

    @torch.no_grad()
    def count(self, ids: Tensor) -> None:
        """Count these ids [n], of this rank alone."""
        for line, odd in zip(self.counts, _ODD, strict=True):
            at = self._place(ids, odd)
            line.index_add_(0, at, torch.ones_like(at))
        self.total += len(ids)

    @torch.no_grad()
    def shares(self, ids: Tensor) -> Tensor:
        """The shares [n] of ids [n] as they were counted."""
        found = torch.minimum(*(line[self._place(ids, odd)] for line, odd in zip(self.counts, _ODD, strict=True)))
        return found.clamp(min=1) / self.total.clamp(min=1)

    def _place(self, ids: Tensor, odd: int) -> Tensor:
        mixed = (ids ^ (ids >> 32)) * odd
        return (mixed >> (64 - self.bits)) & ((1 << self.bits) - 1)

    def extra_repr(self) -> str:
        return f"buckets={1 << self.bits}"
