"""Training under torch.amp.GradScaler, with an overflow on one rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import hybridrec as hr
from tests.parallel.jobs.nets import net_of
from tests.parallel.jobs.training import rank_here, sharded, stores_of
from tests.parallel.training_case import Case

GradScaler = torch.amp.GradScaler  # type: ignore[attr-defined]
OVERFLOW = 1  # the step in which a rank's loss is infinite


def train(case: dict[str, Any], rank: int, unscale: bool) -> dict[str, Any]:
    """The run on this rank."""
    made = Case(**case)
    return run(made, sharded(made), [rank_here()], rank, unscale)


def train_alone(case: Case, unscale: bool) -> dict[str, Any]:
    """The run in one process."""
    return run(case, net_of(case), range(case.world), 0, unscale)


def run(case: Case, model: Any, part: Sequence[int], rank: int, unscale: bool) -> dict[str, Any]:
    """Steps with a scaler over both optimizers."""
    rows, dense = hr.optim.SGD(model, lr=0.5), torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=64.0, growth_interval=1)
    for step in range(len(case.sizes)):
        given = case.rows_of(step, 0, part)
        out, _ = model(given.blocks, given.dense)
        loss = ((out - given.label) ** 2).mean()
        scaler.scale(loss * (math.inf if step == OVERFLOW and rank in part else 1.0)).backward()
        if unscale:
            scaler.unscale_(dense)
            scaler.unscale_(rows)
            hr.optim.clip_grad_norm_(model.parameters(), rows, 0.1)
        for optimizer in (dense, rows):
            scaler.step(optimizer)
        scaler.update()
        dense.zero_grad()
    inside = getattr(model, "module", model)
    weights = {name: each.detach() for name, each in inside.named_parameters()}
    return {"final": stores_of(model), "weights": weights, "scale": scaler.get_scale()}
