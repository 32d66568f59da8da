"""A process of `tiers_gpu.py`: training steps with a part of the rows on the card, beside such with all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

import torch
from embedding_gpu_ours import batch_of, collection, learner_of, optimizer, with_graphs
from gpu_models import LARGE, Shape, sample
from gpu_process import Task, say, tidy
from tiers_gpu_keys import timed
from tiers_gpu_models import CACHED, shape_of
from tiers_gpu_steps import ONE_BY_ONE, interpreted
from torch import Tensor

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.train.placed import Placed
from hybridrec.train.step import train_step
from hybridrec.types import Batch

COMPARED = 8  # steps after which losses and rows must be the same, as far as the order of sums lets them
CLOSE = 1e-3
APART = 2e-3  # numbers of rows begin within 0.05, and a step takes them by 0.03
WATCHED = 1_024  # rows of a table
FEW = 4  # of them, of all tables


class Ran(NamedTuple):
    """ms of a step once each batch was seen, the share of ids whose rows were there by then; first losses, and rows."""

    ms: float
    hit_rate: float
    losses: list[float]
    rows: dict[str, Tensor]


def tiered(task: Task, shape: Shape) -> dict[str, Any]:
    """ms of a step with all rows on the card and with a fifth of them, how much of the speed stays, and hot ids."""
    drawn = [sample(shape, task.batch, number, task.device) for number in range(task.batches)]
    found: dict[str, Any] = {"batches": len(drawn), "ids_sum": sum(int(each.ids.sum()) for each in drawn)}
    batches = [batch_of(shape, task.batch, each) for each in drawn]
    again = _run(replace(task, steps=0), shape, batches, None)
    tidy(task)  # the rows of two have no room beside each other
    hot = _run(task, shape, batches, None)
    say(found := {**found, "hot_ms": hot.ms})
    tidy(task)
    ran = _run(task, shape, batches, CACHED)
    say(found := {**found, "others": others(ran, hot), "others_again": others(again, hot)})
    check(ran, hot, again)
    return {**found, "tiered_ms": ran.ms, "tiered_warm": hot.ms / ran.ms, "hit_rate": ran.hit_rate}


def _run(task: Task, shape: Shape, batches: Sequence[Batch], cache: float | None) -> Ran:
    """Some steps that can be compared; then, where any are to be timed, those."""
    torch.manual_seed(0)
    emb = collection(shape, task.device, cache)
    if task.device == "cpu":
        emb.adopt(_interpreted(emb, cache))
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
    rows = some_rows(emb)
    if not task.steps:
        return Ran(math.nan, 1.0, losses, rows)
    for _ in batches:
        step()
    before = counted(emb)
    ms = timed(step, task.steps, torch.device(task.device))
    learner.settle()
    assert learner.graphs is None or learner.graphs.refused is None, learner.graphs.refused
    return Ran(ms, hit_rate(before, counted(emb)), losses, rows)


def _interpreted(like: hr.EmbeddingCollection, cache: float | None) -> DeviceGroup:
    """The tables of a collection of the CPU as a GPU has them, a share of the rows hot, for Triton's interpreter."""
    if cache is None:
        return interpreted(like)
    made = {
        name: TieredStore(table, like.seed, torch.device("cpu"), round(cache * table.fixed_rows))
        for name, table in like.tables.items()
    }
    return DeviceGroup(made, like.trainable, ONE_BY_ONE)


def some_rows(emb: Any) -> dict[str, Tensor]:
    """Rows of the tables that may have a cache: half from the begin, where ids are used most, half from all over."""
    sizes = {name: table.fixed_rows for name, table in emb.tables.items()}
    least = min(LARGE, max(sizes.values()))
    first = torch.arange(WATCHED // 2)
    asked = {name: torch.cat([first, first * (rows // len(first))]) % rows for name, rows in sizes.items()}
    return {name: emb.lookup(name, ids.to(emb.device)).cpu() for name, ids in asked.items() if sizes[name] >= least}


def check(ran: Ran, wanted: Ran, again: Ran) -> None:
    """Losses are as close, and about as many rows the same, as of two runs with all rows on the card.

    Where gradients nearly cancel, rounding decides the sign of an update, and so all of a row that is seldom used.
    (Tests compare the rows of both to the bit, over sums that are exact.)
    """
    gap, usual_gap = apart(ran, wanted), apart(again, wanted)
    assert gap <= max(CLOSE, 2 * usual_gap), f"losses differ by {gap:.2g}: {ran.losses}, {wanted.losses}"
    found, usual = others(ran, wanted), others(again, wanted)
    assert found <= 2 * usual + FEW, f"{found} of {rows_of(ran)} rows are others; of two runs alike {usual} are"


def apart(ran: Ran, wanted: Ran) -> float:
    """The largest difference of losses, as a share."""
    return max(abs(a - b) / abs(b) for a, b in zip(ran.losses, wanted.losses, strict=True))


def others(ran: Ran, wanted: Ran) -> int:
    """Rows of which more than half the numbers differ."""
    pairs = [(ran.rows[name], rows) for name, rows in wanted.rows.items()]
    return sum(int((((mine - rows).abs() > APART).float().mean(1) > 0.5).sum()) for mine, rows in pairs)


def rows_of(ran: Ran) -> int:
    return sum(map(len, ran.rows.values()))


def counted(emb: Any) -> tuple[int, int]:
    """Ids, and those whose rows were not there, of each cache once."""
    tiers = {store.tier for name in emb.tables if hasattr(store := emb[name], "tier")}
    figures = [tier.figures() for tier in tiers]
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
