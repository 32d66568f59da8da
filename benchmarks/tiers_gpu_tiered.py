"""A process of `tiers_gpu.py`: training steps with a part of the rows on the card, beside such with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from embedding_gpu_ours import batch_of, collection, learner_of, optimizer, with_graphs
from gpu_models import Shape, sample
from gpu_process import Task, say, tidy
from tiers_gpu_keys import timed
from tiers_gpu_models import CACHED, shape_of

from hybridrec.train.placed import Placed
from hybridrec.train.step import train_step
from hybridrec.types import Batch

COMPARED = 8  # steps whose losses must be the same
CLOSE = 1e-3


def tiered(task: Task, shape: Shape) -> dict[str, Any]:
    """ms of a step with all rows on the card and with a fifth of them, how much of the speed stays, and hot ids."""
    drawn = [sample(shape, task.batch, number, task.device) for number in range(task.batches)]
    found: dict[str, Any] = {"batches": len(drawn), "ids_sum": sum(int(each.ids.sum()) for each in drawn)}
    batches = [batch_of(shape, task.batch, each) for each in drawn]
    hot, wanted, _ = _run(task, shape, batches, None)
    say(found := {**found, "hot_ms": hot})
    tidy(task)  # the rows of both have no room beside each other
    ms, losses, hit_rate = _run(task, shape, batches, CACHED)
    assert all(abs(a - b) <= CLOSE * abs(b) for a, b in zip(losses, wanted, strict=True)), (losses, wanted)
    return {**found, "tiered_ms": ms, "tiered_warm": hot / ms, "hit_rate": hit_rate}


def _run(
    task: Task, shape: Shape, batches: Sequence[Batch], cache: float | None
) -> tuple[float, list[float], float]:  # fmt: skip
    """ms of a step once each batch was seen, the first losses, and the share of ids whose rows were there by then."""
    torch.manual_seed(0)
    emb = collection(shape, task.device, cache)
    learner = learner_of(shape, emb, optimizer(shape, emb), task.device)
    if task.device != "cpu":
        with_graphs(learner)
    coming = cycle(batches)
    now = [next(coming)]

    def step(_: int = 0) -> Any:
        batch, now[0] = now[0], next(coming)
        emb.fetch(now[0])  # a step ahead, as the Trainer's feed does it
        return train_step(learner, [Placed(batch, float(len(batch)))])

    losses = [step().loss for _ in range(COMPARED)]
    for _ in batches:
        step()
    before = counted(emb)
    ms = timed(step, task.steps, torch.device(task.device))
    learner.settle()
    assert learner.graphs is None or learner.graphs.refused is None, learner.graphs.refused
    return ms, losses, hit_rate(before, counted(emb))


def counted(emb: Any) -> tuple[int, int]:
    """Ids, and those whose rows were not there, of each cache once."""
    caches = {id(store.cache): store.cache for name in emb.tables if hasattr(store := emb[name], "cache")}
    figures = [cache.figures() for cache in caches.values()]
    assert not any(each.refused for each in figures), "the rows of two batches fit"
    return sum(each.ids for each in figures), sum(each.cold_ids for each in figures)


def hit_rate(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The share of ids whose rows were there, of those between two counts; of tables that are all there, 1."""
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def main() -> None:
    task = Task.received()
    torch.set_float32_matmul_precision("high")  # as a Trainer does it
    say(tiered(task, shape_of(task.model, task.most_rows)))


if __name__ == "__main__":
    main()
