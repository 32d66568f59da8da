"""Small click data and models for the tests of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import hybridrec as hr
from hybridrec.data import Dataset
from hybridrec.models import DeepFM
from hybridrec.train import Trainer, TrainOptions
from hybridrec.train.table_figures import stores

QUIET = TrainOptions(progress="none", log_every=5)


def clicks(rows: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Users, items, tags of an item, an age; whether a click comes depends on user and item."""
    draw = np.random.default_rng(seed)
    user, item = draw.integers(0, 50, rows), draw.integers(0, 30, rows)
    chance = 1 / (1 + np.exp(-3 * np.sin(user + 0.0) - 2 * np.cos(item + 0.0)))
    return {
        "user": user,
        "item": item,
        "tags": [list(range(n)) for n in draw.integers(0, 4, rows)],
        "age": draw.normal(size=rows).astype(np.float32),
        "click": (draw.random(rows) < chance).astype(np.int8),
    }


def dataset(rows: int = 2000, batch_size: int = 100, **options: Any) -> Dataset:
    options.setdefault("label", "click")
    return hr.data.table(clicks(rows), batch_size=batch_size, **options)


def model_of(ds: Dataset, **options: Any) -> DeepFM:
    torch.manual_seed(0)
    return DeepFM(ds.schema, dim=4, hidden=(8,), **options)


def trainer_of(ds: Dataset, model: torch.nn.Module | None = None, **options: Any) -> Trainer:
    options.setdefault("options", QUIET)
    return Trainer(model_of(ds) if model is None else model, **options)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights, rows and row states included, in order of id."""
    found = {name: part.detach().clone() for name, part in model.state_dict().items() if isinstance(part, torch.Tensor)}
    for name, store in stores(model).items():
        data = store.read(store.ids().sort().values)
        found |= {f"rows of {name}": data.rows, f"ids of {name}": data.ids}
        found |= {f"{part} of {name}": values for part, values in data.state.items()}
    return found


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    different = [name for name, part in one.items() if not torch.equal(part, other[name])]
    assert not different, different


def numbers_of(trainer: Trainer) -> list[dict[str, Any]]:
    """The records without what measures time, or counts since the process began."""
    timed = ("time", "seconds", "samples_per_s", "steps_per_s", "wait_share", "stages", "tables")
    return [{name: value for name, value in record.items() if name not in timed} for record in trainer.history]
