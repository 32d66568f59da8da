"""What `parallel.py` counts on ranks of ours: collectives of a step, bytes that travel, and time that is hidden."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch
from parallel_ours import Loop, batch_of, model_of, pairs, place, row_wise
from parallel_step import meet
from parallel_wire import Watch, hidden_share, watched
from parallel_workload import Task, load, naive_bytes
from torch import Tensor, distributed, nn

import hybridrec as hr
from hybridrec.parallel import Placement, Plan
from hybridrec.types import Batch

SCHEMES = ("row", "table", "column", "replicated")


class Sums(nn.Module):
    """One collection, and the least that DDP accepts above it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        names = [f"id{i}" for i in range(task.tables)]
        self.embeddings = hr.EmbeddingCollection(
            [hr.Table(name, task.dim, rows=task.rows, features=[name]) for name in names]
        )
        self.top = nn.Linear(task.tables * task.dim, 1)

    def forward(self, batch: Batch) -> Tensor:
        return self.top(self.embeddings(batch.ids).flat).squeeze(1)


def placed(task: Task, schemes: tuple[str, ...]) -> Plan:
    """A plan that gives the schemes to the tables by turns."""
    every, half = tuple(range(task.world)), task.dim // task.world
    of = {
        "table": lambda name, i: Placement(name, "table", (i % task.world,)),
        "column": lambda name, i: Placement(name, "column", every, columns=(half,) * task.world),
    }
    plain = {scheme: lambda name, i, scheme=scheme: Placement(name, scheme, every) for scheme in ("row", "replicated")}
    made = {**of, **plain}
    chosen = [made[schemes[i % len(schemes)]](f"id{i}", i) for i in range(task.tables)]
    return Plan(task.world, tuple(chosen))


def collectives(task: Task) -> dict[str, Any]:
    """Calls per step, row-wise and with all schemes mixed; the worse counts."""
    found = {"row": calls(task, ("row",)), "mixed": calls(task, SCHEMES)}
    return {"collectives": max(each["collectives"] for each in found.values()), "by_plan": found}


def calls(task: Task, schemes: tuple[str, ...]) -> dict[str, Any]:
    """Every call of torch.distributed in steady steps, by name, less sizes and the reductions of dense gradients.

    The exchange is all that calls all_to_all_single; it says how many of those carry sizes. DDP and the weights of
    ranks reduce; those calls are shown under `reduced`.
    """
    with watched() as watch:
        loop = Loop.of(hr.shard(Sums(task), plan=placed(task, schemes)), rows=hr.optim.Adagrad)
        turn = cycle([batch_of(rows) for rows in load(task, place())])
        for _ in range(task.warm):
            loop.step(next(turn))
        traffic = loop.model.exchange.traffic
        watch.clear()
        traffic.clear()
        for _ in range(task.steps):
            loop.step(next(turn))
        made, sizes = Counter(watch.calls), traffic.calls.get("sizes", 0)
    reduced = made.pop("all_reduce", 0)
    return {
        "collectives": (made.total() - sizes) / task.steps,
        "sizes": sizes / task.steps,
        "reduced": reduced / task.steps,
        "calls": {name: count / task.steps for name, count in made.items()},
    }


def bytes_sent(task: Task) -> dict[str, Any]:
    """Bytes of a step over all ranks, all tables row-wise, bfloat16 both ways, beside the naive way in float32."""
    wire = {"forward": "bfloat16", "gradient": "bfloat16"}
    loop = Loop.of(hr.shard(model_of(task), pin=row_wise(task), wire=hr.parallel.Wire(**wire)))
    rows = load(task, place())
    traffic, sent = loop.model.exchange.traffic, torch.zeros(2, dtype=torch.int64)
    traffic.clear()
    for each in rows:
        loop.step(batch_of(each))
        sent[1] += naive_bytes(each.ids, place(), task.world, task.dim)
    by_kind = dict(traffic.bytes)
    sent[0] = sum(by_kind.values())
    distributed.all_reduce(sent)
    wire_bytes, naive = (sent / len(rows)).tolist()
    return {"wire_bytes": wire_bytes, "naive_bytes": naive, "by_kind_of_first_rank": by_kind}


def overlap(task: Task) -> dict[str, Any]:
    """The hidden share of messages that take `latency_ms` longer, all tables row-wise, in the fastest stretch."""
    with watched(task.latency_ms / 1e3) as watch:
        loop = Loop.of(hr.shard(model_of(task), pin=row_wise(task)))
        batches = [batch_of(rows) for rows in load(task, place())]
        loop.model.prepare(batches[0])
        turn = cycle(pairs(batches))
        for _ in range(task.warm):
            loop.step(*next(turn))
        found = [hidden(task, loop, turn, watch) for _ in range(task.stretches)]
    best = min(found, key=lambda each: each["step_ms"])
    return {**best, "latency_ms": task.latency_ms, "stretches": found}


def hidden(task: Task, loop: Loop, turn: Iterator[tuple[Batch, Batch]], watch: Watch) -> dict[str, float]:
    """The same for one stretch, over the messages of all ranks."""
    meet(task)
    watch.clear()
    start = time.perf_counter()
    for _ in range(task.steps):
        loop.step(*next(turn))
    meet(task)
    passed, messages = time.perf_counter() - start, len(watch.late)
    both = torch.tensor([watch.taken(), watch.blocked], dtype=torch.float64)
    distributed.all_reduce(both)
    taken, blocked = (both / task.world).tolist()
    return {
        "step_ms": passed / task.steps * 1e3,
        "hidden": hidden_share(taken, blocked),
        "messages_per_step": messages / task.steps,
        "exchange_ms": taken / task.steps * 1e3,
        "blocked_ms": blocked / task.steps * 1e3,
    }
