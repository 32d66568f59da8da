"""What `hr.shard` makes of a model, as a rank sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hybridrec as hr
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import ranks
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.types import IdBlock
from tests.parallel.jobs.faults import told
from tests.parallel.jobs.training import held, rank_here


class Ranker(nn.Module):
    """A model with attributes of its own."""

    schema = "of the ranker"

    def __init__(self, rows: int = 10, tables: int = 1) -> None:
        super().__init__()
        made = [hr.Table(f"t{n}", dim=4, rows=rows) for n in range(tables)]
        self.embeddings = hr.EmbeddingCollection(made, seed=5)
        self.top = nn.Linear(4 * tables, 1)

    def forward(self, ids: IdBlock) -> torch.Tensor:
        return self.top(self.embeddings(ids).flat)[:, 0]

    def config(self) -> dict[str, int]:
        return {"tables": len(self.embeddings.tables)}


def plan_of(scheme: str, tables: int = 1) -> Plan:
    """All tables by one scheme."""
    found = ranks()
    world = found.world if found else 1
    every = tuple(range(world))
    devices = {n: (n % world,) if scheme == "table" else every for n in range(tables)}
    columns = (4 // world,) * world if scheme == "column" else ()
    return Plan(world, tuple(Placement(f"t{n}", scheme, devices[n], columns) for n in range(tables)))


def outside() -> dict[str, Any]:
    """What it is to those who use it."""
    model: Any = Ranker()
    sharded: Any = hr.shard(model)
    return {
        "same": sharded is model,
        "kind": isinstance(sharded, ShardedModel),
        "schema": sharded.schema,
        "config": sharded.config(),
        "tables": list(sharded.embeddings.tables),
        "parameters": [name for name, _ in getattr(sharded, "module", sharded).named_parameters()],
        "count": len(list(sharded.parameters())),
        "again": told(lambda: hr.shard(sharded)),
        "absent": told(lambda: sharded.nothing),
    }


def told_weights(scheme: str) -> dict[str, Any]:
    """Ranks that begin with other rows and layers get those of rank 0."""
    torch.manual_seed(rank_here())
    model = Ranker()
    rows = torch.randn(10, 4)
    model.embeddings["t0"].load(torch.arange(10), rows)
    mine = {"rows": rows, "top": model.top.weight.detach().clone()}
    sharded: Any = hr.shard(model, plan=plan_of(scheme))
    return {**mine, "held": held(sharded.embeddings["t0"]), "layer": sharded.top.weight.detach()}


def memory(rows: int) -> dict[str, float]:
    """Bytes of rows here, and of the whole table; the process may not have held it for a moment."""
    before = _peak()
    model: Any = hr.shard(Ranker(rows), plan=plan_of("row"))
    hr.optim.SGD(model, lr=0.1)
    model(IdBlock.from_lists({"t0": [1, 2]})).sum().backward()
    return {"rows": len(model.embeddings["t0"]), "grew": _peak() - before, "whole": rows * 16.0}


def _peak() -> float:
    """The most memory that the process ever had, in bytes."""
    with open("/proc/self/status") as lines:
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def traffic(scheme: str, tables: int, ids: list[int], **options: float) -> dict[str, Any]:
    """Messages and bytes of one step in which every rank asks every table for these ids."""
    model: Any = hr.shard(Ranker(1000, tables), plan=plan_of(scheme, tables))
    rows = hr.optim.SGD(model, lr=0.1, **options)
    block = IdBlock.from_lists({f"t{n}": [ids] for n in range(tables)})
    model.exchange.traffic.clear()
    model(block).sum().backward()
    rows.step()
    return {"calls": dict(model.exchange.traffic.calls), "bytes": dict(model.exchange.traffic.bytes)}


def read(scheme: str) -> dict[str, Any]:
    """Rows by id, each rank for its own."""
    model: Any = hr.shard(Ranker(), plan=plan_of(scheme))
    ids = torch.tensor([[rank_here(), 9], [3, 3]])
    return {"ids": ids, "rows": model.embeddings.lookup("t0", ids)}


def repeated() -> list[torch.Tensor]:
    """The very same block over and over on rank 0, equal ones on others, each sent ahead by one."""
    model: Any = hr.shard(Ranker(), plan=plan_of("row"))
    hr.optim.SGD(model, lr=0.1)
    blocks = [IdBlock.from_lists({"t0": [1, 2, 3]}) for _ in range(4)]
    if rank_here() == 0:
        blocks = blocks[:1] * 4
    found = []
    model.prepare(blocks[0])
    for at, block in enumerate(blocks):
        if at + 1 < len(blocks):
            model.prepare(blocks[at + 1])
        found.append(model(block).detach())
    return found


def skipped(forget: bool) -> dict[str, Any]:
    """Batches that were prepared, of which the first is not looked up."""
    model: Any = hr.shard(Hashed(), plan=plan_of("row"))
    hr.optim.SGD(model, lr=0.1)
    blocks = [IdBlock.from_lists({"t0": [n, n + 1]}) for n in range(3)]
    for block in blocks[:2]:
        model.prepare(block)
    with torch.no_grad():
        between = model(blocks[2])  # was not prepared, and may come at any time
    if forget:
        model.forget()
    error = told(lambda: model(blocks[1]))
    model.forget()
    kept = len(model.embeddings._inner._kept)
    return {**error, "kept": kept, "outputs": [between, *(model(block).detach() for block in blocks)]}


class Hashed(Ranker):
    """One whose ids are hashed, so that collections keep blocks of their own beside those that were prepared."""

    def __init__(self) -> None:
        super().__init__()
        table = hr.Table("t0", dim=4, hashes=hr.embedding.MultiHash(2, 5))
        self.embeddings = hr.EmbeddingCollection([table], seed=5)
        with torch.no_grad():
            self.top.weight.fill_(1.0), self.top.bias.zero_()


def hoarded() -> dict[str, Any]:
    """Batches are prepared over and over, and others are looked up."""
    model: Any = hr.shard(Ranker(), plan=plan_of("row"))

    def loop() -> None:
        for n in range(100):
            model.prepare(IdBlock.from_lists({"t0": [n % 10]}))
            model(IdBlock.from_lists({"t0": [n % 10]}))

    return told(loop)


def crowded(capacity: int, eviction: str) -> dict[str, Any]:
    """More ids over time than a dynamic table holds."""
    table = hr.Table("user", dim=4, capacity=capacity, eviction=eviction)
    world = plan_of("row").world
    plan = Plan(world, (Placement("user", "row", tuple(range(world))),))
    model: Any = hr.shard(hr.EmbeddingCollection([table]), plan=plan)
    rows = hr.optim.Adagrad(model, lr=0.1)
    generator = torch.Generator().manual_seed(rank_here())
    finite = True
    for _ in range(30):
        ids = torch.randint(-(2**62), 2**62, (4, 2), generator=generator)
        out = model(IdBlock.from_ragged({"user": ids})).flat
        out.square().sum().backward()
        rows.step()
        finite = finite and bool(out.isfinite().all())
    store = model.module["user"]
    ids = store.ids()
    return {"ids": ids, "owned": bool(store.share.owns(store.table, ids).all()), "finite": finite, "count": len(store)}
