"""Caches for tests, and what must be true of each at any time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridrec.ops.row_cache.cache import Column, RowCache, Sizes
from hybridrec.ops.row_cache.packing import pack, unpack

# So small that a batch needs several programs, blocks and rounds of each loop.
SMALL = Sizes(ids=8, block=4, span=2, sums=2, programs=2, movers=2, numbers=16)


def made(
    rows: int,
    slots: int,
    values: Sequence[Tensor],
    device: torch.device,
    sizes: Sizes = SMALL,
    kept: torch.dtype | None = None,
) -> RowCache:
    """A cache of these values [rows, …], of which the first are hot; the first column is `kept` cold in a type."""
    cache = RowCache.make(rows, slots, device, sizes)
    cache.key = 2**63 + 12345
    for number, column in enumerate(values):
        cold = pack(column[slots:].cpu(), column.dtype if number or kept is None else kept).clone()
        cache.columns.append(
            Column(column[:slots].to(device).clone(), cold.pin_memory() if device.type == "cuda" else cold)
        )
    return cache


def contents(cache: RowCache, column: int) -> Tensor:
    """All rows of a column in their order, on the CPU, found by the directory alone."""
    hot, cold = (part.cpu() for part in cache.columns[column])
    entries = cache.directory.cpu().long()
    found = torch.empty(len(entries), *hot.shape[1:], dtype=hot.dtype)
    found[entries >= 0], found[entries < 0] = hot[entries[entries >= 0]], unpack(cold[~entries[entries < 0]], hot)
    return found


def sound(cache: RowCache) -> None:
    """Every slot and every place has one row, and slots know theirs."""
    entries = cache.directory.cpu().long()
    assert sorted(entries.tolist()) == [*range(-cache.places, 0), *range(cache.slots)]
    assert torch.equal(entries[cache.owner.cpu().long()], torch.arange(cache.slots))


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Whether they are equal to the last bit, NaN too."""
    words = {2: torch.int16, 4: torch.int32}[expected.dtype.itemsize]
    return torch.equal(found.cpu().view(words), expected.cpu().view(words))
