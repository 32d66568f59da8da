"""A collection on the device under test, beside one on the CPU that it must agree with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.owner import RowOwner
from hybridrec.ops.row_groups.triton import Sizes
from hybridrec.types import IdBlock, Ragged
from tests.gpu import DEVICE, INTERPRETED

# So small that a batch has rows with one, few and many occurrences, of several chunks and programs.
SMALL = Sizes(ids=16, few=2, chunk=4, programs=2, warps=1)
SIZES = [SMALL] if INTERPRETED else [SMALL, Sizes()]


class OnDevice(RowOwner, nn.Module):
    """The tables of a CPU collection on the device, looked up without the collection around them."""

    def __init__(self, like: hr.EmbeddingCollection, sizes: Sizes) -> None:
        super().__init__()
        self.stores = {name: DeviceStore(table, like.seed, DEVICE) for name, table in like.tables.items()}
        trainable = {name for name, table in like.tables.items() if table.trainable}
        self.group = DeviceGroup(self.stores, trainable, sizes)  # pyright: ignore
        self._look_up = self.group.lookup_fn(like._features)

    def forward(self, block: IdBlock) -> tuple[Tensor, Sequence[Tensor]]:
        """The pooled features, and the sequences."""
        return self._look_up(block.to(DEVICE), self.training)


def lists(rows: int, most: int, batch: int) -> Ragged:
    """Lists of 0 to `most` ids, of which low ones are frequent."""
    lengths = torch.randint(0, most + 1, (batch,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Ragged(ids(rows, int(offsets[-1])), offsets)


def ids(rows: int, *shape: int) -> Tensor:
    """Ids of a table, of which low ones are frequent."""
    return (torch.rand(*shape) ** 4 * rows).long()


def weighted(features: dict[str, Ragged | Tensor]) -> IdBlock:
    """A block of these features with a weight for each id."""
    counts = {name: len(f.values) if isinstance(f, Ragged) else f.numel() for name, f in features.items()}
    return IdBlock.from_ragged(features, weights={name: torch.rand(n) + 0.1 for name, n in counts.items()})
