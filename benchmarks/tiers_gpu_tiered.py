"""The work of `tiers_gpu.py`: training steps with a part of the rows on the card, beside such with all of them."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from embedding_gpu_ours import batch_of, collection, learner_of, optimizer, with_graphs
from gpu_models import Shape, sample, shape_of
from tiers_gpu_keys import timed
from tiers_gpu_steps import ONE_BY_ONE, interpreted

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.train.placed import Placed
from hybridrec.train.step import train_step
from hybridrec.types import Batch

CACHED = 0.2
COMPARED = 8  # steps whose losses must be the same
CLOSE = 1e-3


def tiered(args: Any, model: str, device: str) -> dict[str, float]:
    """ms of a step with all rows on the card and with a fifth of them, how much of the speed stays, and hot ids."""
    shape, at = shape_of(model, 500 if device == "cpu" else None), torch.device(device)
    batches = [batch_of(shape, args.batch, sample(shape, args.batch, n, device)) for n in range(args.batches)]
    hot, wanted, _ = _run(shape, batches, None, args.steps, at)
    gc.collect()  # the rows of both have no room beside each other
    ms, found, hit_rate = _run(shape, batches, CACHED, args.steps, at)
    gc.collect()
    assert all(abs(a - b) <= CLOSE * abs(b) for a, b in zip(found, wanted, strict=True)), (found, wanted)
    return {"hot_ms": hot, "tiered_ms": ms, "tiered_warm": hot / ms, "hit_rate": hit_rate}


def _run(
    shape: Shape, batches: Sequence[Batch], cache: float | None, steps: int, at: torch.device
) -> tuple[float, list[float], float]:
    """ms of a step once each batch was seen, the first losses, and the share of ids whose rows were there by then."""
    torch.manual_seed(0)
    emb = collection(shape, at.type, cache)
    if at.type == "cpu":
        emb.adopt(_interpreted(emb, cache))
    learner = learner_of(shape, emb, optimizer(shape, emb), at.type)
    if at.type != "cpu":
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
    before = _counted(emb)
    ms = timed(step, steps, at)
    learner.settle()
    after = _counted(emb)
    return ms, losses, 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def _interpreted(like: hr.EmbeddingCollection, cache: float | None) -> DeviceGroup:
    """The tables of a collection of the CPU as a GPU has them, a share of the rows hot, for Triton's interpreter."""
    if cache is None:
        return interpreted(like)
    made = {
        name: TieredStore(table, like.seed, torch.device("cpu"), round(cache * table.fixed_rows))
        for name, table in like.tables.items()
    }
    return DeviceGroup(made, like.trainable, ONE_BY_ONE)


def _counted(emb: Any) -> tuple[int, int]:
    """Ids, and those whose rows were not there, of each cache once."""
    tiers = {store.tier for name in emb.tables if hasattr(store := emb[name], "tier")}
    figures = [tier.figures() for tier in tiers]
    assert not any(each.refused for each in figures), "the rows of two batches fit"
    return sum(each.ids for each in figures), sum(each.cold_ids for each in figures)
