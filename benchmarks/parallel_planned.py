"""Does a plan cost what the planner says? Tables alone, without layers, by one scheme, on one rank or two.

The cost model knows the tables, how many of the batches' ids are distinct, and the usual "cpu" of a `Cluster`. Its
phases follow each other, so no ids go ahead here. On one rank the lookup goes the way of many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from parallel_step import timed
from parallel_workload import EPS, LR, Rows, Task, load, together

import hybridrec as hr
from hybridrec.parallel import Cluster, FeatureLoad, Placement, Plan, TableLoad, Wire, Workload, predict
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.shard import place
from hybridrec.types import Batch, IdBlock

SCHEMES = ("replicated", "row", "table")


def plan_of(task: Task, scheme: str) -> Plan:
    """All tables by one scheme; whole ones go to the ranks in turns."""
    every = tuple(range(task.world))
    devices = [(i % task.world,) if scheme == "table" else every for i in range(task.tables)]
    return Plan(task.world, tuple(Placement(f"id{i}", scheme, on) for i, on in enumerate(devices)))


def workload_of(task: Task, batches: list[list[Rows]]) -> Workload:
    """What the cost model knows of the tables; `batches` are those of each rank."""
    every = [together(list(parts)) for parts in zip(*batches, strict=True)]
    return Workload(tuple(table_load(task, i, batches[0], every) for i in range(task.tables)), task.batch)


def table_load(task: Task, table: int, mine: list[Rows], every: list[Rows]) -> TableLoad:
    """A table with the distinct ids of a rank's batch, and of those of all ranks."""
    distinct = {
        len(rows[0].label): np.mean([len(np.unique(each.ids[table])) for each in rows]) for rows in (mine, every)
    }
    growth = tuple((float(ids), float(found)) for ids, found in distinct.items())
    name = f"id{table}"
    return TableLoad(name, task.rows, task.dim, (FeatureLoad(name),), state_per_row=4, growth=growth)


def planned(task: Task, rank: int, batch_of: Callable[[Rows], Batch]) -> dict[str, Any]:
    """Milliseconds of a step of lookup, backward and row update, and what was predicted, phase by phase."""
    _, scheme, _ = task.kind.split("_")
    plan, batches = plan_of(task, scheme), [load(task, each) for each in range(task.world)]
    found = predict(plan, workload_of(task, batches), Cluster.parse(f"1x{task.world}xcpu"))
    tables = [hr.Table(f"id{i}", task.dim, rows=task.rows) for i in range(task.tables)]
    collection = hr.EmbeddingCollection(tables, seed=0)
    model: Any = hr.shard(collection, plan=plan) if task.world > 1 else place(collection, plan, Ranks(0, 1), Wire(), {})
    rows = hr.optim.RowWiseAdagrad(model, lr=LR, eps=EPS)
    grad = torch.randn(task.batch, task.tables * task.dim) / task.batch

    def step(block: IdBlock) -> None:
        model(block).flat.backward(grad)
        rows.step()

    measured = timed(task, [batch_of(each).ids for each in batches[rank]], step)
    measured.pop("rows_per_s")
    device = found.seconds.index(found.step)
    phases = {phase: 1e3 * seconds[device] for phase, seconds in found.phases.items()}
    return {**measured, "predicted_ms": 1e3 * found.step, "phases_ms": phases}
