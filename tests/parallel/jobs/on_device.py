"""Small programs of ranks whose rows are on the device under test."""

from __future__ import annotations

from typing import Any

import torch

import hybridrec as hr
from hybridrec.types import IdBlock
from tests.gpu import DEVICE
from tests.parallel.gpu.collection import DeviceCollection
from tests.parallel.jobs.faults import told
from tests.parallel.jobs.sharding import plan_of
from tests.parallel.jobs.training import held, rank_here

ROWS, DIM = 10, 4


def collection(scheme: str, tables: int = 1, combiner: str = "sum") -> Any:
    """Tables t0, t1, ... on all ranks."""
    made = [hr.Table(f"t{n}", DIM, rows=ROWS, combiner=combiner) for n in range(tables)]
    return hr.shard(DeviceCollection(made, seed=5), plan=plan_of(scheme, tables))


def looked_up_by(offsets: list[int]) -> dict[str, str]:
    """Rank 0 has such offsets for three ids; the others have good ones."""
    lines = torch.tensor([offsets if rank_here() == 0 else [0, 1, 2, 3]])
    block = IdBlock.trusted(("t0",), torch.tensor([1, 2, 3]), (0, 3), (None,), lines, None, 3).to(DEVICE)
    return told(lambda: collection("row")(block))


def not_finite(scheme: str) -> dict[str, Any]:
    """Rank 0 has a gradient that is no number."""
    model = collection(scheme)
    rows = hr.optim.SGD(model, lr=0.1, nan="raise")
    before = held(model.module["t0"])
    out = model(IdBlock.from_lists({"t0": [[1, 2], [3]]}).to(DEVICE)).flat
    (out * (float("nan") if rank_here() == 0 else 1.0)).sum().backward()
    found = told(rows.step)
    return {**found, "same": torch.equal(before["rows"], held(model.module["t0"])["rows"])}


def read() -> dict[str, Any]:
    """Rows by id, each rank for its own; then one that is not there."""
    whole = hr.EmbeddingCollection([hr.Table("t0", DIM, rows=ROWS, combiner="sum")], seed=5)
    ids = torch.tensor([[rank_here(), 9], [3, 3]])
    model = collection("row").module
    same = torch.equal(model.lookup("t0", ids).cpu(), whole.lookup("t0", ids))
    return {"rows": same, "refused": told(lambda: model.lookup("t0", [ROWS + rank_here()]))}


def traffic(tables: int) -> dict[str, Any]:
    """Messages of one step."""
    model = collection("row", tables)
    rows = hr.optim.SGD(model, lr=0.1)
    block = IdBlock.from_lists({f"t{n}": [[1, 2, 1]] for n in range(tables)}).to(DEVICE)
    model.exchange.traffic.clear()
    model(block).flat.sum().backward()
    rows.step()
    return {"calls": dict(model.exchange.traffic.calls), "bytes": dict(model.exchange.traffic.bytes)}
