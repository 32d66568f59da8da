"""A small frame with everything a schema can hold: nulls, lists, weights of ids, dense numbers, several labels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import hybridrec as hr
from hybridrec.data import Bucketize
from hybridrec.models import Model, build

SHARE = {"seen": "item"}
CONFIGS = {
    "widedeep": {"share": SHARE},
    "dlrm": {"share": SHARE, "bottom": [8], "top": [16]},
    "deepfm": {"share": SHARE, "hidden": [16]},
    "dcnv2": {"share": SHARE, "rank": 4, "hidden": [16]},
    "din": {"history": SHARE, "hidden": [16], "attention": [8]},
    "mmoe": {"share": SHARE, "experts": 2, "expert": [16], "tower": [8]},
    "twotower": {"item": ["item", "size"], "hidden": [16], "out": 8},
}


def frame(rows: int = 600, seed: int = 0) -> pa.Table:
    """Clicks that depend on the item, on whether it was seen before, and on the age."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 30, rows), random.integers(0, 20, rows)
    seen = [random.integers(0, 20, random.integers(0, 5)).tolist() for _ in range(rows)]
    age = random.normal(40, 15, rows)
    again = np.array([i in s for i, s in zip(item, seen, strict=True)], dtype=float)
    logit = np.where(item % 2 == 0, 2.0, -2.0) + 0.05 * (age - 40) + 2.0 * again
    click = random.random(rows) < 1 / (1 + np.exp(-logit))
    none = random.random(rows) < 0.1
    return pa.table(
        {
            "user": pa.array(user, mask=none),
            "item": item,
            "seen": pa.array(seen, pa.list_(pa.int64())),
            "stars": pa.array([[float(i % 3) for i in s] for s in seen], pa.list_(pa.float32())),
            "size": pa.array(age.round() * 2, mask=none),
            "age": pa.array(age, mask=none),
            "click": click.astype(np.int8),
            "like": (click & (random.random(rows) < 0.5)).astype(np.int8),
        }
    )


def dataset(
    rows: int = 600, labels: tuple[str, ...] = ("click",), batch_size: int = 100, seed: int = 0
) -> hr.data.Dataset:
    table = frame(rows, seed).drop_columns([name for name in ("click", "like") if name not in labels])
    ds = hr.data.table(table, label=list(labels), batch_size=batch_size, threads=1)
    schema = ds.schema.edit("seen", weights="stars").edit("stars", kind="skip")
    schema = schema.edit("size", kind="id", transforms=[Bucketize([30.0, 60.0, 90.0])])
    return ds.with_schema(schema.cross("item", "size", buckets=50))


def made(name: str, schema: hr.data.Schema, **config: object) -> Model:
    """The model of this name, small, and always with the same weights."""
    torch.manual_seed(0)
    return build(name, schema, dim=4, **{**CONFIGS[name], **config})


def losses(model: Model, batches: list[hr.Batch], epochs: int = 1) -> list[float]:
    """Mean loss of every epoch of a plain training loop."""
    rows, dense = hr.optim.Adagrad(model, lr=0.1), torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(epochs):
        total = 0.0
        for batch in batches:
            loss = loss_of(model.train()(batch), batch)
            loss.backward()
            dense.step()
            rows.step()
            dense.zero_grad()
            total += float(loss.detach())
        found.append(total / len(batches))
    return found


def loss_of(out: torch.Tensor, batch: hr.Batch) -> torch.Tensor:
    """Binary cross entropy; for in-batch logits, the cross entropy of the rows that were clicked."""
    label = batch.label
    assert label is not None
    if out.shape == label.shape:
        return binary_cross_entropy_with_logits(out, label)
    each = cross_entropy(out, torch.arange(len(out)), reduction="none")
    return (each * label).sum() / label.sum().clamp(min=1)
