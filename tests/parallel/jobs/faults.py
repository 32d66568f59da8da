"""Runs that go wrong on purpose: what each rank is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hybridrec as hr
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import ranks
from hybridrec.types import IdBlock
from tests.parallel.jobs.training import rank_here, run, sharded
from tests.parallel.training_case import Case, table_of


def told(call: Callable[[], Any]) -> dict[str, str]:
    """The error of a call, as this rank sees it."""
    try:
        call()
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": "", "text": ""}


def stranger(case: dict[str, Any], rank: int, feature: str, value: int) -> dict[str, Any]:
    """One rank has an id that its table has no row for; then all go on with good ids."""
    made = Case(**case)
    model = sharded(made)
    given = made.rows_of(0, 0, [rank_here()])
    block = given.blocks[0]
    if rank_here() == rank:
        lists = {name: block[name].to_list() for name in block.names}
        lists[feature][-1] = [*lists[feature][-1], value]
        block = IdBlock.from_lists(lists)
    found = told(lambda: model([block], given.dense))
    out, _ = model(given.blocks, given.dense)
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
