"""Runs that go wrong on purpose: what each rank is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import hybridrec as hr
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import ranks
from hybridrec.types import IdBlock
from tests.parallel.jobs.training import device_of, rank_here, run, sharded, stores_of
from tests.parallel.training_case import DENSE, Case, table_of


def told(call: Callable[[], Any]) -> dict[str, str]:
    """The error of a call, as this rank sees it."""
    try:
        call()
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": "", "text": ""}


def stranger(case: dict[str, Any], rank: int, feature: str, value: int, ahead: bool = False) -> dict[str, Any]:
    """One rank has an id that its table has no row for; then all go on with good ids, sent ahead or not."""
    made = Case(**case)
    model = sharded(made)
    given = made.rows_of(0, 0, [rank_here()]).to(device_of(made))
    block = given.blocks[0]
    if rank_here() == rank:
        lists = {name: block[name].to_list() for name in block.names}
        lists[feature][-1] = [*lists[feature][-1], value]
        block = IdBlock.from_lists(lists).to(device_of(made))
    after = made.rows_of(0, 0, [rank_here()]).to(device_of(made)).blocks[0]
    if ahead:
        for each in (block, after):
            model.prepare(each)
    found = told(lambda: model([block], given.dense))
    out, _ = model([after], given.dense)
    return {**found, "rows": len(out)}


def optimizer(case: dict[str, Any]) -> dict[str, str]:
    """What making the optimizer and training say."""
    made = Case(**case)
    return told(lambda: run(made, sharded(made), [rank_here()]))


def planned(tables: list[dict[str, Any]], placements: list[dict[str, Any]], world: int) -> dict[str, str]:
    """What `hr.shard` says to a plan."""
    emb = hr.EmbeddingCollection([table_of(spec) for spec in tables])
    made = [
        Placement(each["table"], each["scheme"], tuple(each["devices"]), tuple(each.get("columns", ())))
        for each in placements
    ]
    return told(lambda: hr.shard(emb, plan=Plan(world, tuple(made))))


def differing(what: str) -> dict[str, str]:
    """Ranks that were started with different programs."""
    rank = rank_here()
    rows = 10 + (rank if what == "rows" else 0)
    emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=rows)])
    scheme = "row" if what == "plan" and rank else "replicated"
    devices = tuple(range(_world()))
    plan = Plan(_world(), (Placement("item", scheme, devices),)) if what == "plan" else None
    model = torch.nn.ModuleDict({"emb": emb, "top": torch.nn.Linear(4 + (rank if what == "dense" else 0), 1)})
    return told(lambda: hr.shard(model, plan=plan))


def _world() -> int:
    found = ranks()
    return found.world if found else 1


def full(case: dict[str, Any]) -> dict[str, str]:
    """A dynamic table is asked for more ids in one step than it holds."""
    made = Case(**case)
    model = sharded(made)
    hr.optim.SGD(model, lr=0.1)
    ids = torch.arange(8).reshape(2, 4) + 100 * rank_here()
    block = IdBlock.from_ragged({"user": ids, "friends": ids})
    return told(lambda: model([block], torch.zeros(2, DENSE)))


def some_learned(rank: int) -> dict[str, Any]:
    """One rank alone wants the gradient of its weights."""
    emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10)])
    model: Any = hr.shard(emb, plan=Plan(_world(), (Placement("item", "table", (0,)),)))
    hr.optim.SGD(model, lr=0.1)
    block = IdBlock.from_ragged({"item": torch.arange(6).reshape(3, 2)})
    weights = torch.ones(6, requires_grad=rank_here() == rank)
    found: dict[str, Any] = {}

    def train() -> None:
        found["out"] = model(replace(block, weights=weights)).flat
        found["out"].sum().backward()

    found |= told(train)
    found["then"] = model(block).flat
    return found


def not_finite(case: dict[str, Any], rank: int) -> dict[str, Any]:
    """The gradients of one rank are not finite; what `nan` says is done on all of them."""
    made = Case(**case)
    model = sharded(made)
    rows = hr.optim.SGD(model, **made.options)
    before = stores_of(model)
    given = made.rows_of(0, 0, [rank_here()])
    out, _ = model(given.blocks, given.dense)
    (out.sum() * (float("nan") if rank_here() == rank else 1.0)).backward()
    found = told(rows.step)
    after = stores_of(model)
    same = all(torch.equal(before[name]["rows"], after[name]["rows"]) for name in before if name != "user")
    finite = all(bool(after[name]["rows"].isfinite().all()) for name in after)
    return {**found, "same": same, "finite": finite}
