"""The models of the library, trained on this rank's slice of every global batch, or alone on all of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hybridrec as hr
from hybridrec.data import Dataset
from hybridrec.parallel.homes import homes_in
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import ranks
from tests.models.clicks import dataset, loss_of, made
from tests.parallel.jobs.training import stores_of

BATCH, ROWS = 30, 150
LABELS = {"mmoe": ("click", "like")}


def data_of(name: str) -> Dataset:
    """Clicks in global batches."""
    return dataset(ROWS, LABELS.get(name, ("click",)), BATCH)


def train(name: str) -> dict[str, Any]:
    """The run on this rank."""
    found = ranks()
    assert found is not None
    ds = data_of(name)
    model = made(name, ds.schema)
    return run(hr.shard(model, plan=plan_of(model, found.world)), ds.shard(found.rank, found.world, by="batch"))


def plan_of(model: nn.Module, world: int) -> Plan:
    """Tables by one scheme after another, of those that they can have."""
    tables = {name: home.table(own) for home in homes_in(model) for name, own in home.names.items()}
    made = []
    for at, (name, table) in enumerate(tables.items()):
        schemes = ("row", "table") if table.dynamic else ("replicated", "row", "table")
        scheme = schemes[at % len(schemes)]
        made.append(Placement(name, scheme, (at % world,) if scheme == "table" else tuple(range(world))))
    return Plan(world, tuple(made))


def train_alone(name: str) -> dict[str, Any]:
    """The run in one process."""
    ds = data_of(name)
    return run(made(name, ds.schema), ds)


def run(model: Any, ds: Dataset) -> dict[str, Any]:
    """One epoch, and what comes of it."""
    rows = hr.optim.Adagrad(model, lr=0.1, eps=1e-3)
    dense = torch.optim.SGD(model.parameters(), lr=0.05)
    outputs = []
    for batch in ds:
        out = model(batch)
        outputs.append(out.detach().clone())
        loss_of(out, batch).backward()
        hr.optim.clip_grad_norm_(model.parameters(), rows, 1.0)
        for optimizer in (dense, rows):
            optimizer.step()
            optimizer.zero_grad()
    inside = getattr(model, "module", model)
    layers = {**dict(inside.named_parameters()), **dict(inside.named_buffers())}
    return {"outputs": outputs, "layers": {k: v.detach() for k, v in layers.items()}, "final": stores_of(model)}
