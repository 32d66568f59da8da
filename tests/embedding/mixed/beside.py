"""Tables on the device under test beside tables on the host, and the same tables in one collection on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.host import HostGroup
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import QUICK
from tests.gpu import DEVICE

Make = Callable[[Any], hr.optim.RowOptimizer]


def beside(tables: Sequence[hr.Table], seed: int = 3) -> hr.EmbeddingCollection:
    """A collection with the tables that are not on the host on the device under test."""
    if DEVICE.type != "cpu":
        return hr.EmbeddingCollection(tables, seed=seed, device=DEVICE)
    return spread(hr.EmbeddingCollection(tables, seed=seed))


def spread(made: hr.EmbeddingCollection) -> hr.EmbeddingCollection:
    """A collection on the CPU, now with such tables on a device that is the CPU too."""
    here = {name: made[name] for name, table in made.tables.items() if table.on_host}
    there = {name: DeviceStore(table, made.seed, DEVICE) for name, table in made.tables.items() if name not in here}
    of_card = DeviceGroup(there, made.trainable, QUICK) if there else None
    made.adopt(MixedGroup(made.tables, of_card, HostGroup(here, made.trainable, DEVICE), DEVICE))
    return made


class Pair:
    """The same tables all on the CPU, and some of them on the device, each with its row optimizer."""

    def __init__(self, tables: Sequence[hr.Table], make: Make) -> None:
        self.cpu = hr.EmbeddingCollection([replace(table, where=None) for table in tables], seed=3)
        self.mixed = beside(tables)
        self.rows = make(self.cpu), make(self.mixed)

    def outputs(self, block: IdBlock) -> list[list[Tensor]]:
        """The pooled features, then the sequences, of both, which must agree."""
        made = [emb(block.to(emb.device)) for emb in (self.cpu, self.mixed)]
        wanted, got = ([out.flat, *(part.values for part in out.sequences.values())] for out in made)
        close(got, wanted)
        return [wanted, got]

    def backward(self, block: IdBlock) -> None:
        """The same gradients for both."""
        parts = self.outputs(block)
        factors = [torch.randn_like(part) for part in parts[0]]
        for each in parts:
            sum((part * f.to(part)).sum() for part, f in zip(each, factors, strict=True)).backward()  # pyright: ignore

    def step(self) -> None:
        """Both norms agree, and both take their step."""
        wanted, got = (rows.grad_norm() for rows in self.rows)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        for rows in self.rows:
            rows.step()

    def agree(self, atol: float = 1e-5) -> None:
        """Rows, state and clocks of both are the same."""
        for name in self.cpu.tables:
            want, got = self.cpu[name], self.mixed[name]
            of_both = got.export(), want.export()
            assert torch.equal(of_both[0].ids, of_both[1].ids)
            close([data.rows.float() for data in of_both[:1]], [of_both[1].rows.float()], atol)
            close(list(of_both[0].state.values()), list(of_both[1].state.values()), atol)
            assert got.clock == want.clock


def close(got: Sequence[Tensor], wanted: Sequence[Tensor], atol: float = 1e-5) -> None:
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), other, atol=atol, rtol=1e-4)
