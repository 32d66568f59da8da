"""A collection on the device under test, beside one on the CPU that it must agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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
SMALL = Sizes(ids=16, few=2, chunk=4, programs=2, warps=1, turns=2, part=4)
QUICK = replace(SMALL, ids=64, programs=1, part=32)  # where another test has several programs
SIZES = [SMALL] if INTERPRETED else [SMALL, Sizes()]


class OnDevice(RowOwner, nn.Module):
    """The tables of a CPU collection on the device, looked up without the collection around them."""

    def __init__(
        self,
        like: hr.EmbeddingCollection,
        sizes: Sizes,
        store: Callable[[hr.Table, int], DeviceStore] = lambda table, seed: DeviceStore(table, seed, DEVICE),
    ) -> None:
        super().__init__()
        self.stores = {name: store(table, like.seed) for name, table in like.tables.items()}
        trainable = {name for name, table in like.tables.items() if table.trainable}
        self.group = DeviceGroup(self.stores, trainable, sizes)  # pyright: ignore
        self._look_up = self.group.lookup_fn(like._features)
        self._names, self._inner = like._names, like._inner

    def forward(self, block: IdBlock) -> tuple[Tensor, Sequence[Tensor]]:
        """The pooled features, and the sequences."""
        inner = self._inner(block)
        return self._look_up(inner.to(DEVICE), self.training)


class Pair:
    """The same tables on the CPU and on the device, each with its row optimizer."""

    def __init__(self, tables: Sequence[hr.Table], make: Callable[[Any], hr.optim.RowOptimizer], sizes: Sizes) -> None:
        self.cpu = hr.EmbeddingCollection(tables, seed=3)
        self.gpu = OnDevice(self.cpu, sizes)
        self.optimizers = make(self.cpu), make(self.gpu)

    def outputs(self, block: IdBlock) -> tuple[list[Tensor], list[Tensor]]:
        """The pooled features, then the sequences, of both, which must agree."""
        expected, (flat, sequences) = self.cpu(block), self.gpu(block)
        wanted = [expected.flat, *(part.values for part in expected.sequences.values())]
        for want, got in zip(wanted, [flat, *sequences], strict=True):
            torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-5)
        return wanted, [flat, *sequences]

    def backward(self, block: IdBlock, exact: bool = False) -> None:
        """The same gradients for both: multiples of an eighth where sums must be exact."""
        wanted, got = self.outputs(block)
        factors = [torch.randint(-8, 9, part.shape) / 8 if exact else torch.randn_like(part) for part in wanted]
        for parts in (wanted, got):
            sum((part * f.to(part)).sum() for part, f in zip(parts, factors, strict=True)).backward()  # pyright: ignore

    def step(self) -> None:
        for rows in self.optimizers:
            rows.step()

    def agree(self, atol: float = 1e-5, rtol: float = 1e-4) -> None:
        """Rows and states of both are close, and what grouping left behind is clean."""
        for name, store in self.gpu.stores.items():
            torch.testing.assert_close(store.weight.cpu(), self.cpu[name].weight, atol=atol, rtol=rtol)
            for column, values in store.states.items():
                torch.testing.assert_close(values.cpu(), self.cpu[name].state(column), atol=1e-5, rtol=1e-4)
        assert not self.gpu.group.ground.places.any()


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
