"""Steps in which some outputs of a table are not used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hybridrec as hr
from hybridrec.types import IdBlock
from tests.gpu import DEVICE
from tests.parallel.jobs.sharding import plan_of
from tests.parallel.jobs.training import held, rank_here

STEPS = ["flat and sequence", "flat", "sequence", "flat, then sequence", "flat"]


def trained(scheme: str, on_device: bool = False, dynamic: bool = False) -> dict[str, Any]:
    """Adam over such steps, on this rank among two; what it holds in the end."""
    from tests.parallel.gpu.collection import DeviceCollection  # Triton comes with it

    emb = (DeviceCollection if on_device else hr.EmbeddingCollection)([table(dynamic)], seed=1)
    model: Any = hr.shard(emb, plan=plan_of(scheme))
    train(model, [rank_here()], on_device)
    return {"t0": held(model.module["t0"])}


def trained_alone(dynamic: bool = False) -> dict[str, Any]:
    """The same in one process, on the batches of both ranks."""
    emb = hr.EmbeddingCollection([table(dynamic)], seed=1)
    train(emb, range(2), False)
    return {"t0": held(emb["t0"])}


def table(dynamic: bool) -> hr.Table:
    """One with a pooled feature and one that is not."""
    size: dict[str, Any] = {"capacity": 50} if dynamic else {"rows": 20}
    combiner = {"pooled": "sum", "listed": "none"}
    return hr.Table("t0", 4, features=["pooled", "listed"], combiner=combiner, init=hr.embedding.Uniform(1.0), **size)


def train(model: Any, ranks: Iterable[int], on_device: bool) -> None:
    """Take these steps on the batches of these ranks."""
    rows = hr.optim.Adam(model, lr=0.1)
    batches = [([1, 2], [3 + rank], [2, 7 + rank], [10, 11 + rank]) for rank in ranks]
    pooled, listed = ([ids for each in batches for ids in each[first : first + 2]] for first in (0, 2))
    for used in STEPS:
        block = IdBlock.from_lists({"pooled": pooled, "listed": listed})
        out = model(block.to(DEVICE) if on_device else block)
        parts = {"flat": out.flat, "sequence": out.sequences["listed"].flat}
        losses = {name: part.square().sum() / len(pooled) for name, part in parts.items()}
        calls = used.split(", then ")
        for number, call in enumerate(calls, 1):
            total = sum(losses[name] for name in call.split(" and "))
            total.backward(retain_graph=number < len(calls))  # pyright: ignore[reportAttributeAccessIssue]
        rows.step()
