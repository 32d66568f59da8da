"""From a configuration to a Trainer and its data: what is not stated is inferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hybridrec.data import csv, ipc, parquet
from hybridrec.data.dataset import Dataset
from hybridrec.data.schema import Schema
from hybridrec.models import build
from hybridrec.train.optimizers import DENSE_LR, ROW_LR
from hybridrec.train.run_config import DENSE_KINDS, ROW_KINDS, DataConfig, RunConfig, optimizer_kind
from hybridrec.train.seeds import seed_everything
from hybridrec.train.trainer import Trainer

LARGEST_BATCH, SMALLEST_BATCH = 8192, 64
STEPS_AN_EPOCH = 800  # that a small data set should give
OPENERS = {".csv": csv, ".tsv": csv, ".arrow": ipc, ".feather": ipc, ".ipc": ipc}


class Launch(NamedTuple):
    """A run that can start."""

    trainer: Trainer
    train: Dataset
    valid: Dataset | None
    epochs: int | None
    steps: int | None


def launch(config: RunConfig) -> Launch:
    """Open the data, make the model and its Trainer."""
    train, valid = datasets(config.data)
    options = config.options()
    if options.seed is not None:
        seed_everything(options.seed)  # before the layers are drawn
    chosen = {"name": "deepfm" if len(train.schema.of("label")) < 2 else "mmoe", **config.model}
    model = build(chosen.pop("name"), train.schema, **chosen)
    usual = "in_batch_softmax" if type(model).__name__ == "TwoTower" else "bce"
    trainer = Trainer(
        model,
        _optimizer("optimizer", config.optimizer, DENSE_KINDS, DENSE_LR),
        _optimizer("row_optimizer", config.row_optimizer, ROW_KINDS, ROW_LR),
        out=config.out,
        loss=config.loss or usual,
        metrics=config.metrics,
        options=options,
    )
    trainer.about["run"] = config.to_json()
    return Launch(trainer, train, valid, config.train.get("epochs"), config.train.get("steps"))


def _optimizer(section: str, values: dict[str, Any], kinds: dict[str, str], lr: float) -> Any:
    kind, options = optimizer_kind(section, values, kinds)
    return lambda target: kind(target, **{"lr": lr, **options})


def datasets(data: DataConfig) -> tuple[Dataset, Dataset | None]:
    """What to train on, and what to validate on."""
    if not data.path:
        raise ValueError("there is no data to train on; name the files: hybridrec train DATA, or data.path")
    opened = open_data(data.path, batch_size=LARGEST_BATCH, label=data.label, weight=data.weight, threads=data.threads)
    if not data.label:
        names = ", ".join(feature.name for feature in opened.schema)
        raise ValueError(f"which column is the label? name it with --label, or data.label; the data has {names}")
    opened = opened if data.columns is None else opened.select(data.columns)
    share = _share(data.valid)
    train, valid = opened.split(1 - share) if share is not None else (opened, None)
    if share is None and data.valid is not None:
        valid = open_data([str(data.valid)], batch_size=LARGEST_BATCH, schema=opened.schema, threads=data.threads)
    size = data.batch_size or batch_size_for(train.num_rows)
    train = train.batch(size)
    return train.shuffle(seed=data.seed) if data.shuffle else train, None if valid is None else valid.batch(size)


def open_data(paths: list[str], *, batch_size: int, schema: Schema | None = None, **options: Any) -> Dataset:
    """A dataset of files, by the ending of the first: Parquet, CSV, TSV or Arrow."""
    opener = OPENERS.get(Path(paths[0].removesuffix(".gz")).suffix.lower(), parquet)
    kept = {name: value for name, value in options.items() if value not in (None, [], ())}
    return opener(list(paths), batch_size=batch_size, schema=schema, **kept)


def batch_size_for(rows: int) -> int:
    """A power of two that gives a small data set some hundred steps an epoch, and a large one 8192.

    >>> batch_size_for(20_000), batch_size_for(2_000_000)
    (64, 2048)
    """
    size = LARGEST_BATCH
    while size > SMALLEST_BATCH and rows / size < STEPS_AN_EPOCH:
        size //= 2
    return size


def _share(valid: str | float | None) -> float | None:
    """The share of rows that `valid` states, if it is none of a path."""
    try:
        share = float(valid) if valid is not None else None
    except ValueError:
        return None
    if share is not None and not 0 < share < 1:
        raise ValueError(f"valid is {valid}; a share of the rows is above 0 and below 1")
    return share
