"""Small trained models of every kind, and frames to score with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch

import hybridrec as hr
from hybridrec.models import Model, build

ROWS = 120
KINDS: dict[str, dict[str, Any]] = {
    "widedeep": {},
    "dlrm": {},
    "deepfm": {},
    "dcnv2": {},
    "din": {"history": {"seen": "item"}},
    "mmoe": {},
    "twotower": {"item": ["item", "tags"]},
}


def frame(rows: int = ROWS, seed: int = 0) -> dict[str, Any]:
    """Single ids, ragged lists (some empty) with weights, a null here and there, dense numbers, two labels."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, 4, rows)
    return {
        "user": pa.array([None if i % 17 == 3 else int(draw.integers(-20, 20)) for i in range(rows)], pa.int64()),
        "item": draw.integers(0, 30, rows),
        "seen": [draw.integers(0, 30, n).tolist() for n in draw.integers(0, 5, rows)],
        "tags": [draw.integers(0, 9, n).tolist() for n in counts],
        "stars": [draw.random(n).tolist() for n in counts],
        "age": pa.array([None if i % 13 == 5 else float(draw.normal(40, 9)) for i in range(rows)], pa.float32()),
        "price": draw.lognormal(size=rows).astype(np.float32),
        "click": draw.integers(0, 2, rows).astype(np.int8),
        "like": draw.integers(0, 2, rows).astype(np.int8),
    }


def dataset(labels: tuple[str, ...] = ("click",), **edits: dict[str, Any]) -> hr.data.Dataset:
    data = {name: column for name, column in frame().items() if name not in ("click", "like") or name in labels}
    ds = hr.data.table(data, label=labels, batch_size=50)
    schema = ds.schema.edit("tags", weights="stars")
    for name, changes in edits.items():
        schema = schema.edit(name, **changes)
    return ds.with_schema(schema)


def fit(model: torch.nn.Module, ds: hr.data.Dataset) -> None:
    """Some steps with large rates, so that rows and layers are far from where they began."""
    dense, rows = torch.optim.SGD(model.parameters(), 0.1), hr.optim.Adagrad(model, lr=0.5)
    model.train()
    for batch in ds:
        out = model(batch)
        (out.diagonal() if out.shape == (len(batch), len(batch)) else out).square().mean().backward()
        dense.step()
        rows.step()


def trained(kind: str, **options: Any) -> tuple[Model, hr.data.Dataset]:
    ds = dataset(("click", "like") if kind == "mmoe" else ("click",))
    model = build(kind, ds.schema, dim=8, **KINDS[kind], **options)
    fit(model, ds)
    return model, ds


@torch.no_grad()
def scores(model: torch.nn.Module, ds: hr.data.Dataset) -> np.ndarray:
    """What the trained model itself predicts."""
    was = model.training
    model.eval()
    made = torch.cat([torch.sigmoid(model(batch)) for batch in ds]).numpy()
    model.train(was)
    return made
