"""Small programs of ranks whose dynamic tables are on the device under test, or in memory of hosts to compare with."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

import hybridrec as hr
from hybridrec.embedding.share import Share
from hybridrec.parallel.ranks import ranks
from hybridrec.train.table_figures import TableFigures
from hybridrec.types import IdBlock
from tests.gpu import DEVICE, wait_for_the_device
from tests.parallel.gpu.collection import DeviceCollection
from tests.parallel.jobs.faults import told
from tests.parallel.jobs.nets import net_of
from tests.parallel.jobs.sharding import plan_of
from tests.parallel.jobs.training import held, rank_here, run, sharded, stores
from tests.parallel.training_case import Case

DIM = 4
EXTREMES = [-(2**63), 2**63 - 1, 0, -1, 2**31, -(2**32), 7]


def table(capacity: int, name: str = "t0", **more: Any) -> hr.Table:
    """A dynamic table whose rows begin with numbers of their own."""
    return hr.Table(name, DIM, capacity=capacity, init=hr.embedding.Uniform(1.0), **more)


def collection(scheme: str, capacity: int, tables: int = 1, on_device: bool = True, **more: Any) -> Any:
    """Tables t0, t1, ... of that kind on all ranks."""
    kind = DeviceCollection if on_device else hr.EmbeddingCollection
    made = [table(capacity, f"t{n}", **more) for n in range(tables)]
    return hr.shard(kind(made, seed=5), plan=plan_of(scheme, tables))


def block_of(ids: list[list[int]], tables: int = 1, device: torch.device = DEVICE) -> IdBlock:
    """The same ids for all tables, where their rows are."""
    return IdBlock.from_lists({f"t{n}": ids for n in range(tables)}).to(device)


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """The run of a case on this rank, what its tables count, and what is told of those of all ranks."""
    made = Case(**case)
    model = sharded(made)
    figures = TableFigures(model.module, ranks())
    found = run(made, model, [rank_here()])
    return found | _counted(model) | {"told": figures.take()}


def trained_alone(case: Case) -> dict[str, Any]:
    """The same run in one process on the CPU."""
    model = net_of(made := replace(case, on_device=False))
    return run(made, model, range(case.world)) | _counted(model)


def _counted(model: Any) -> dict[str, Any]:
    """What the tables here count, and their steps."""
    found = stores(model)
    counters = {name: store.counters() for name, store in found.items()}
    return {"counters": counters, "clocks": {name: store.clock for name, store in found.items()}}


def crowded(capacity: int, eviction: str, on_device: bool = True) -> dict[str, Any]:
    """More ids over time than a table holds, those of each batch sent ahead."""
    model = collection("row", capacity, on_device=on_device, eviction=eviction)
    rows = hr.optim.Adagrad(model, lr=0.1)
    generator, finite = torch.Generator().manual_seed(rank_here()), True
    blocks = [torch.randint(-(2**62), 2**62, (4, 2), generator=generator).tolist() for _ in range(4)]
    coming = [block_of(ids, device=model.device) for ids in blocks]
    for number, block in enumerate(coming):
        for each in coming[number : number + 2] if number == 0 else coming[number + 1 : number + 2]:
            model.prepare(each)
        out = model(block).flat
        out.square().sum().backward()
        rows.step()
        finite = finite and bool(out.isfinite().all())
    store = model.module["t0"]
    there = {"finite": finite, "evicted": store.counters()["evicted"], "held": held(store)}
    slots = store.slots.slots if on_device else 0
    return {"slots": slots, "owned": bool(store.share.owns(store.table, store.ids()).all()), **there}


def churned(eviction: str | int, ranks_of: list[int] | None = None) -> dict[str, Any]:
    """Steps of two batches on more ids than there is room for, by this rank among others or alone by all of them."""
    policy = hr.embedding.TTL(eviction) if isinstance(eviction, int) else eviction
    if ranks_of is None:
        model, store = (made := collection("table", 26, eviction=policy)), made.module["t0"]
    else:
        model = hr.EmbeddingCollection([table(26, eviction=policy)], seed=5)
        store = model["t0"]
    rows = hr.optim.Adagrad(model, lr=0.1)
    for step in range(5):
        for micro in range(2):
            ids = [each for rank in ranks_of or [rank_here()] for each in _some_ids(step, micro, rank)]
            given = block_of(ids) if ranks_of is None else IdBlock.from_lists({"t0": ids})
            (model(given).flat.square().sum(1).mean() / 2).backward()
        rows.step()
    return {"held": held(store), "counters": store.counters()}


def _some_ids(step: int, micro: int, rank: int) -> list[list[int]]:
    """Two rows of three ids."""
    random = Random(f"{step} {micro} {rank}")
    return [[int(random.random() ** 2 * 60) * 2**57 - 2**62 for _ in range(3)] for _ in range(2)]


def too_many() -> dict[str, Any]:
    """All ranks together have more new ids than rank 0 has room for; then all go on with few."""
    model = collection("table", 6)
    rows = hr.optim.SGD(model, lr=0.1)
    _step(model, rows, [[1, 2, 3]])
    _step(model, rows, [[1, 10 + rank_here()], [20 + rank_here(), 30 + rank_here()]])
    wait_for_the_device()
    before = held(model.module["t0"])
    found = told(lambda: model(block_of([[1]])))
    after = held(model.module["t0"])
    lost = not torch.equal(before["rows"], after["rows"])
    out = model(block_of([[1, 2]])).flat
    kept = dict(zip(after["ids"].tolist(), after["rows"], strict=True))
    return {**found, "ids": after["ids"].tolist(), "lost": lost, "out": out.detach().cpu(), "kept": _sum(kept, [1, 2])}


def too_many_ahead() -> dict[str, Any]:
    """All ranks together have more new ids for rank 1 than it has room for, and batches are sent ahead."""
    model = collection("row", 6)
    rows, store = hr.optim.SGD(model, lr=0.1), model.module["t0"]
    ids = torch.arange(40)
    of_one = ids[Share(1, 2).owns(store.table, ids)].tolist()
    many = of_one[2 + 2 * rank_here() : 4 + 2 * rank_here()]
    blocks = [block_of([each]) for each in (of_one[:2], many, of_one[:1], of_one[:1], of_one[:1])]
    model.prepare(blocks[0])
    for number, block in enumerate(blocks):
        for following in blocks[number + 1 : number + 2]:
            model.prepare(following)
        wait_for_the_device()
        if (found := told(lambda block=block: model(block).flat.sum().backward()))["kind"]:
            break
        rows.step()
    model.forget()
    kept = held(store)
    out = model.eval()(block_of([of_one[:2]])).flat.detach().cpu()
    return {**found, "number": number, "ids": kept["ids"].tolist(), "rows": kept["rows"].sum(0), "out": out[0]}


def _sum(rows: dict[int, Tensor], ids: list[int]) -> Tensor:
    return sum((rows[id] for id in ids if id in rows), torch.zeros(DIM))


def _step(model: Any, rows: Any, ids: list[list[int]]) -> None:
    model(block_of(ids)).flat.sum().backward()
    rows.step()


def late(on_device: bool) -> dict[str, Any]:
    """Gradients come when steps are over, rows have gone and memory has grown: of a lookup in eval() and of another."""
    model = collection("row", 24, 2, on_device)
    rows = hr.optim.Adagrad(model, lr=0.1)

    def looked_up(ids: list[list[int]]) -> Tensor:
        return model(block_of(ids, 2, model.device)).flat

    def step(ids: list[list[int]]) -> None:
        looked_up(ids).sum().backward()
        rows.step()

    step([[1, 2], [3, 4]])
    model.eval()
    read = looked_up([[1, 2], [3, 4]])
    model.train()
    before = looked_up([[1, 3], [5, 6 + rank_here()]])
    step([[8, 9]])
    step([list(range(10, 16)), list(range(16, 23)), [23 + rank_here()]])
    (read.sum() + before.sum()).backward()
    rows.step()
    found = [model.module[name] for name in ("t0", "t1")]
    return {"held": [held(each) for each in found], "dropped": [each.counters()["dropped_gradients"] for each in found]}


def extremes(scheme: str, eviction: str = "lru") -> dict[str, Any]:
    """A step with ids of all sizes, and rows by id then, in eval too; a rank reads some that are not there."""
    model = collection(scheme, 40, eviction=eviction)
    alone = hr.EmbeddingCollection([table(40, eviction=eviction)], seed=5)
    for emb, many in ((model, False), (alone, True)):
        rows = hr.optim.Adagrad(emb, lr=0.1)
        ids = [EXTREMES, EXTREMES[:2]]
        out = emb(block_of(ids) if not many else IdBlock.from_lists({"t0": ids * _world()})).flat
        out.square().sum(1).mean().backward()
        rows.step()
    wanted = torch.tensor([*EXTREMES[rank_here() :], 12345, 2**62])
    found = model.module.lookup("t0", wanted).cpu()
    close = torch.allclose(found, alone.lookup("t0", wanted), atol=1e-6)
    return {"same": close, "ids": model.module["t0"].ids(), "rows": len(alone["t0"])}


def _world() -> int:
    found = ranks()
    return found.world if found else 1


def divided(scheme: str) -> dict[str, Any]:
    """A collection that has rows already is divided: what each rank has of those of rank 0."""
    whole = DeviceCollection([table(40)], seed=5)
    rows = hr.optim.SGD(whole, lr=0.1)
    for ids in ([[1, 2, 3], [4]], [[5, 6], [7, 8, 9, 1]]):
        whole(block_of([[id * (1 + rank_here()) for id in each] for each in ids])).flat.sum().backward()
        rows.step()
    rows.release()
    before = held(whole["t0"])
    model: Any = hr.shard(whole, plan=plan_of(scheme))
    out = model.eval()(block_of([[1, 9], [2]])).flat.detach().cpu()
    return {"before": before, "after": held(model.module["t0"]), "out": out}
