"""Runs whose sums are exact in any order, so that ranks and one process must agree in every bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

import hybridrec as hr
from tests.parallel.jobs.nets import Collections
from tests.parallel.jobs.training import device_of, rank_here, shard, stores_of
from tests.parallel.training_case import Case


def train(case: dict[str, Any]) -> dict[str, Any]:
    """The run on this rank."""
    made = Case(**case)
    return run(made, shard(Collections(made), made), [rank_here()])


def train_alone(case: Case) -> dict[str, Any]:
    """The run in one process."""
    alone = replace(case, on_device=False)
    return run(alone, Collections(alone), range(case.world))


def run(case: Case, model: Any, part: Sequence[int]) -> dict[str, Any]:
    """A loss that is linear in the embeddings, with gradients that are multiples of a small power of two."""
    rows = getattr(hr.optim, case.optimizer)(model, **case.options)
    found: dict[str, Any] = {"initial": stores_of(model), "outputs": []}
    for step, (sizes,) in enumerate(case.sizes):
        (block,), _, _ = case.rows_of(step, 0, part).to(device_of(case))
        out = torch.cat(model(block), dim=1)
        factors = [_factors((sizes[rank], out.shape[1]), 100 * step + rank) for rank in part]
        (out * torch.cat(factors).to(out)).sum(1).mean().backward()
        rows.step()
        found["outputs"].append(out.detach().cpu())
    found["final"] = stores_of(model)
    return found


def _factors(shape: tuple[int, int], seed: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)) / 8.0
