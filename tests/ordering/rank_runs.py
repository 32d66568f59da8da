"""Training over ranks on the stand-in card: of one rank in this process, or of each of several in its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.gpu.group import ONE_BY_ONE
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import Ranks, ranks
from hybridrec.parallel.shard import place
from hybridrec.train.ids_ahead import IdsAhead
from hybridrec.train.placed import Placed
from hybridrec.types import Batch, IdBlock
from tests.embedding.gpu.replayed import scored
from tests.ordering import exchanges
from tests.ordering.card import Card
from tests.ordering.stand_in import standing_in
from tests.parallel.gpu import collection

THERE = torch.device("cuda", 0)
DIM, ROWS, CACHE = 4, 40, 12
KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"rows": ROWS},
    "tiered": {"rows": ROWS, "cache": CACHE},
    "dynamic": {"capacity": 30, "eviction": "lru"},
}


MANY = {"user": "row", "item": "row", "shop": "table", "day": "replicated", "query": "row"}  # and their schemes


def many() -> list[hr.Table]:
    """Tables of all kinds: fixed ones, one in two tiers and a dynamic one, bags and a sequence."""
    return [
        hr.Table("user", DIM, rows=ROWS, cache=CACHE),
        hr.Table("item", DIM, rows=ROWS, features=["item", "seen"], combiner={"item": "sum", "seen": "none"}),
        hr.Table("shop", DIM, rows=ROWS, combiner="mean"),
        hr.Table("day", DIM, rows=ROWS, combiner="max"),
        hr.Table("query", DIM, capacity=30, eviction="lru"),
    ]


def lists(number: int) -> Batch:
    """Ids of all of them: of each feature two rows, of which one has more ids in each batch."""
    names = ("user", "item", "seen", "shop", "day", "query")
    first = 3 * number
    ids = [[first % ROWS] * (1 + number % 4), [(first + 1) % ROWS, (first - 3) % ROWS]]
    return scored(IdBlock.from_lists(dict.fromkeys(names, ids)), 5 * DIM)


class Scored(nn.Module):
    """The sum of what comes of a row's ids, each number times one of the batch."""

    def __init__(self, tables: Sequence[hr.Table]) -> None:
        super().__init__()
        self.embeddings = collection.DeviceCollection(list(tables), seed=3)

    def forward(self, batch: Batch) -> Tensor:
        out = self.embeddings(batch)
        return (out.flat * batch.dense).sum(1) + sum(each.values.sum() for each in out.sequences.values())


class RankRun:
    """The part of a run that this rank has. Nobody waits for what comes of a step."""

    def __init__(self, tables: Sequence[hr.Table], schemes: dict[str, str]) -> None:
        here = ranks() or Ranks(0, 1)
        self.rank, self.world = here.rank, here.world
        plan = Plan(self.world, tuple(_placed(table, schemes[table.name], self.world) for table in tables))
        self.model: Any = place(Scored(tables), plan, here, Wire(), {})
        self.group = self.model.embeddings.group
        self.group.sizes = ONE_BY_ONE
        self.rows = hr.optim.RowWiseAdagrad(self.model, lr=0.125)

    def go_through(self, batches: Sequence[Batch], ahead: int) -> None:
        """Steps with an evaluation in between; ids are sent so many batches ahead, and those of one for nobody."""
        for now in self._coming(batches[:-2], ahead):
            self.model(now).mean().backward()
            self.rows.step()
        self.model.eval()
        with torch.no_grad():
            for now in self._coming(batches[:4], ahead):
                self.model(now)
        self.model.train()
        if ahead:
            self.model.prepare(_moved(batches[2]))
            self.model.forget()
        for now in self._coming(batches[-2:], ahead):
            self.model(now).mean().backward()
            self.rows.step()
        self.group.check()

    def _coming(self, batches: Sequence[Batch], ahead: int) -> Iterator[Batch]:
        """As the Trainer has it: `hybridrec.train.ids_ahead`."""
        if not ahead:
            return map(_moved, batches)
        placed = (Placed(_moved(each), len(each)) for each in batches)
        coming = IdsAhead(placed, lambda each: each, self.model.prepare, self.model.forget, steps=ahead)
        return (each.batch for each in coming)


def _moved(batch: Batch) -> Batch:
    return batch.to(THERE, non_blocking=True)


def _placed(table: hr.Table, scheme: str, world: int) -> Placement:
    devices = (0,) if scheme == "table" else tuple(range(world))
    columns = (table.dim // world,) * world if scheme == "column" else ()
    return Placement(table.name, scheme, devices, columns)


def begin(card: Card, monkeypatch: pytest.MonkeyPatch, nccl: bool) -> None:
    """Ranks have their rows on the card."""
    exchanges.watch(card, monkeypatch, nccl)
    monkeypatch.setattr(collection, "DEVICE", THERE)


def batch(number: int) -> Batch:
    """Two new rows of one table, and one of the batch before."""
    first = 3 * number
    ids = torch.tensor([first % ROWS, (first + 1) % ROWS, (first - 3) % ROWS])
    return scored(IdBlock.from_ragged({"user": ids}), DIM)


def gone_through(ahead: int, nccl: bool, scheme: str | None = None, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """What the card of this rank has found: with tables of all kinds, or with fixed ones of one scheme.

    Half of a batch is another one on each rank.
    """
    with pytest.MonkeyPatch.context() as patches, standing_in(patches) as card:
        card.left_out = set(left_out)
        begin(card, patches, nccl)
        if scheme is None:
            run, given = RankRun(many(), MANY), lists
        else:
            run, given = RankRun([hr.Table("user", DIM, rows=ROWS)], {"user": scheme}), batch
        run.go_through([given(number + run.rank * (number % 2)) for number in range(6)], ahead)
        return {"accesses": card.accesses, "findings": card.findings, "waits": sorted(card.waits)}
