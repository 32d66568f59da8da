"""FixedBatch: memory on a device into which batch after batch is copied, for kernels that know one address."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hybridrec.types import Batch, IdBlock, Ragged
from hybridrec.types.id_block import NO_ID

LARGE = 1 << 20  # bytes; smaller tensors are copied together, by one launch that is slow for large ones
FEW = 4  # so many small ones of a type are copied one by one: together, one block has all 256 KB of a label


def shape_of(batch: Batch) -> Hashable:
    """What batches in one FixedBatch have in common: everything but the numbers and the lengths of ragged features."""
    ids = batch.ids
    parts = {"dense": batch.dense, "label": batch.label, "weight": batch.weight, **_columns(batch)}
    kinds = tuple((name, part.shape, part.dtype) for name, part in parts.items() if part is not None)
    return ids.names, ids.hotness, ids.batch_size, ids.weights is None, kinds


def room(count: int) -> int:
    """Places for a ragged feature with so many ids: some more than that, in coarse steps.

    >>> [room(count) for count in (0, 1000, 1100, 100_000)]
    [256, 1280, 1280, 106496]
    """
    wanted = count + count // 16
    step = max(256, 1 << max(0, wanted.bit_length() - 4))
    return max(1, -(-wanted // step)) * step


def rooms(ids: IdBlock) -> list[int]:
    """Places for each feature of a block: for just its ids, but for those that are ragged.

    >>> rooms(IdBlock.from_lists({"day": [1, 2, 3], "pages": [[1], [], [2, 3]]}))
    [3, 256]
    """
    sizes = (stop - start for start, stop in pairwise(ids.starts))
    return [room(size) if hot is None else size for hot, size in zip(ids.hotness, sizes, strict=True)]


class FixedBatch:
    """A batch of one shape whose tensors stay where they are. Ragged features have room for longer ones.

    Places without an id hold `NO_ID`, which stands for no row and is no error.
    """

    def __init__(self, like: Batch, before: FixedBatch | None = None) -> None:
        """Room for batches like this one, and for all that fitted the one before."""
        wanted = rooms(like.ids)
        self.sizes = wanted if before is None else list(map(max, wanted, before.sizes))
        self.ragged = None in like.ids.hotness
        starts = (0, *accumulate(self.sizes))
        ids = like.ids
        block = _unchecked(
            ids,
            values=ids.values.new_full((starts[-1],), NO_ID),
            starts=starts,
            offsets=ids.offsets.clone(),
            weights=None if ids.weights is None else ids.weights.new_zeros(starts[-1]),
        )
        rest = replace(like, ids=block, extra=_columns(like), arena=None)
        self.batch = rest.map_tensors(torch.clone)

    def fits(self, batch: Batch) -> bool:
        """Whether a batch of this shape has no longer features."""
        return all(
            stop - start <= most for (start, stop), most in zip(pairwise(batch.ids.starts), self.sizes, strict=True)
        )

    def fill(self, batch: Batch, more: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        """Copy a batch into this memory, in a few launches.

        And `more` numbers like its ids, each into memory like that of the ids here.
        """
        own, ids = self.batch, batch.ids
        pairs = [(own.dense, batch.dense), (own.label, batch.label), (own.weight, batch.weight)]
        pairs += [(own.ids.offsets, ids.offsets)]
        pairs += [(own.extra[name], column) for name, column in _columns(batch).items()]
        if self.ragged:
            for to, values in ((own.ids.values, ids.values), *more):
                to.fill_(NO_ID)
                pairs += self._segments(to, values, ids)
            if ids.weights is not None:
                pairs += self._segments(own.ids.weights, ids.weights, ids)
        else:
            pairs += [(own.ids.values, ids.values), (own.ids.weights, ids.weights), *more]
        kept = [(to, part) for to, part in pairs if part is not None and 0 < part.nbytes < LARGE]
        for to, part in pairs:
            if part is not None and part.nbytes >= LARGE:
                to.copy_(part, non_blocking=True)
        for kind in {part.dtype for _, part in kept}:
            mine = [pair for pair in kept if pair[1].dtype == kind]
            if len(mine) <= FEW:
                for to, part in mine:
                    to.copy_(part, non_blocking=True)
            else:
                torch._foreach_copy_([to for to, _ in mine], [part for _, part in mine])  # pyright: ignore[reportPrivateImportUsage]

    def _segments(self, to: Tensor | None, values: Tensor, ids: IdBlock) -> list[tuple[Tensor, Tensor]]:
        assert to is not None, "a batch of this shape has weights"
        places = zip(self.batch.ids.starts, pairwise(ids.starts), strict=False)
        return [(to[place : place + stop - start], values[start:stop]) for place, (start, stop) in places]


def _columns(batch: Batch) -> dict[str, Tensor]:
    """The extra columns that are tensors; ragged ones are for people, models do not see them."""
    return {name: column for name, column in batch.extra.items() if not isinstance(column, Ragged)}


def _unchecked(ids: IdBlock, **changed: object) -> IdBlock:
    made = ids.map_tensors(lambda tensor: tensor)
    for name, value in changed.items():
        object.__setattr__(made, name, value)
    return made
