"""Predict: memory, seconds and the bottleneck of a plan. What the planner makes small, told for one plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridrec.parallel import cost
from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.served import server_memory
from hybridrec.parallel.workload import TableLoad, Workload


@dataclass(frozen=True)
class Prediction:
    """By device: bytes on it and on its host, and seconds of a step by phase; by server, bytes on it."""

    memory: tuple[int, ...]
    host_memory: tuple[int, ...]
    phases: dict[str, tuple[float, ...]]
    server_memory: tuple[int, ...] = ()

    @property
    def seconds(self) -> tuple[float, ...]:
        """Of a step, by device."""
        return tuple(map(sum, zip(*self.phases.values(), strict=True)))

    @property
    def step(self) -> float:
        """Seconds of a step: those of the slowest device."""
        return max(self.seconds)

    @property
    def bottleneck(self) -> tuple[int, str]:
        """The slowest device, and the phase that takes most of its time."""
        device = self.seconds.index(self.step)
        return device, max(self.phases, key=lambda phase: self.phases[phase][device])


def predict(plan: Plan, workload: Workload, cluster: Cluster, wire: cost.Wire | None = None) -> Prediction:
    """What a plan will cost: a lower bound, as links and memory are taken at the speeds of their data sheets.

    >>> work = Workload((TableLoad("item", rows=1000, dim=8),), batch_size=64)
    >>> found = predict(Plan(2, (Placement("item", "table", (1,)),)), work, Cluster.parse("1x2xcpu"))
    >>> found.memory, found.bottleneck
    ((4096, 44288), (1, 'calls'))
    """
    if plan.world != cluster.world:
        raise ValueError(f"the plan is for {plan.world} devices, and {cluster.name} has {cluster.world}; plan anew")
    names = [table.name for table in workload.tables]
    if odd := sorted({each.table for each in plan.placements} ^ set(names)):
        raise ValueError(f"plan and workload differ in table {odd[0]!r}; plan anew for these tables")
    step = cost.Step(cluster, workload.batch_size, wire or cost.Wire())
    total = np.zeros((cost.QUANTITIES, cluster.world))
    for table in workload.tables:
        if plan[table.name].where != "server":
            add(total, table, plan[table.name], step)
    room, host = (tuple(int(x) for x in total[i]) for i in (cost.ROOM, cost.HOST_ROOM))
    found = dict(zip(cost.PHASES, cost.phases(total, step), strict=True))
    seconds = {name: tuple(float(x) for x in line) for name, line in found.items()}
    return Prediction(room, host, seconds, server_memory(plan, workload))


def add(total: np.ndarray, table: TableLoad, placement: Placement, step: cost.Step) -> None:
    """Add what a placed table asks of every device to totals [quantity, device]."""
    home = cost.Home(placement.where == "host", placement.cache)
    if placement.scheme == "replicated":
        total += cost.replicated(table, step)[:, None]
        return
    if placement.columns and sum(placement.columns) != table.dim:
        raise ValueError(f"{placement}: the columns are {sum(placement.columns)}, the table has {table.dim}; plan anew")
    if placement.scheme == "row":
        everyone, holders = cost.rowwise(table, step, len(placement.devices), home)
    else:
        everyone, holders = cost.whole(table, step, placement.columns or (table.dim,), home)
    total += everyone[:, None]
    total[:, list(placement.devices)] += holders.T
