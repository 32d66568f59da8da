"""Jobs for rank processes: what a Trainer does there, as values that tests compare with one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hybridrec as hr
from hybridrec.data import Dataset
from hybridrec.models import DeepFM, TwoTower
from hybridrec.parallel.ranks import ranks
from hybridrec.train import Callback, Trainer, TrainOptions
from hybridrec.train.together import inside
from tests.train.clicks import QUIET, clicks

# Beside times, the borders of the calibration curve: those of score bins, so that a last digit moves them by a bin.
TIMES = ("time", "samples_per_s", "steps_per_s", "wait_share", "stages", "seconds", "tables", "calibration_curve")


def data_of(rows: int, batch_size: int, weighted: bool = False) -> Dataset:
    columns = clicks(rows)
    if weighted:
        columns["weight"] = np.random.default_rng(1).integers(0, 3, rows).astype(np.float32)
    return hr.data.table(columns, label="click", weight="weight" if weighted else None, batch_size=batch_size)


def model_of(ds: Dataset, kind: str, **more: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "twotower":
        return TwoTower(ds.schema, dim=4, item=["item", "age"], hidden=(8,), out=4, **more)
    return DeepFM(ds.schema, dim=4, hidden=(8,), **more)


def trainer_of(
    ds: Dataset, kind: str = "deepfm", options: dict[str, Any] | None = None, made: Any = None, **more: Any
) -> Trainer:
    chosen, model = replace(QUIET, **(options or {})), model_of(ds, kind, **(made or {}))
    return Trainer(model, loss="in_batch_softmax" if kind == "twotower" else "bce", options=chosen, **more)


def fitted(
    kind: str = "deepfm",
    rows: int = 333,
    batch_size: int = 50,
    weighted: bool = False,
    by: str = "batch",
    epochs: int = 2,
    metrics: list[str] | None = None,
    made: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A fit on the same global batches, whatever the number of ranks, and all that is seen of it."""
    ds = data_of(rows, batch_size, weighted)
    train, valid = ds.split(0.9)
    trainer = trainer_of(ds, kind, options, made, metrics=metrics)
    sharded = train.shuffle(seed=1)
    history = trainer.fit(sharded.shard_for_rank(by=by), valid, epochs=epochs)  # pyright: ignore[reportArgumentType]
    return {
        "records": [{name: each[name] for name in each if name not in TIMES} for each in history],
        "rows": trainer.state.rows,
        "weights": {name: part.detach().cpu().clone() for name, part in inside(trainer.model).named_parameters()},
        "buffers": {name: part.cpu().clone() for name, part in inside(trainer.model).named_buffers()},
        "scores": torch.from_numpy(np.asarray(trainer.predict(ds))),
        "evaluated": trainer.evaluate(ds),
    }


def few_rows(rows: int, folder: str) -> dict[str, Any]:
    """Evaluation and prediction of fewer rows than ranks."""
    ds = data_of(40, 8)
    trainer = trainer_of(ds)
    few, _ = ds.split(rows / 40)
    written = trainer.predict(few, out=Path(folder) / "scores.parquet", columns=["user"], force=True)
    return {
        "evaluated": trainer.evaluate(few),
        "scores": torch.from_numpy(np.asarray(trainer.predict(few))),
        "written": written,
    }


class StopOnRank(Callback):
    """Ends the fit from one rank alone, after a number of steps."""

    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step

    def on_step(self, trainer: Trainer, result: Any) -> None:
        mine = ranks()
        if trainer.step == self.step and (mine is None or mine.rank == self.rank):
            trainer.stop("one rank has enough")


def stopped_by(rank: int) -> dict[str, Any]:
    ds = data_of(4000, 4)
    trainer = trainer_of(ds, callbacks=[StopOnRank(rank, 3)])
    trainer.fit(ds, epochs=1000)
    return {"step": trainer.step, "stopped": trainer.state.stopped}


def refused(what: str) -> str:
    """The error of a fit that cannot be."""
    mine = ranks()
    rank = 0 if mine is None else mine.rank
    ds = data_of(100, 10 + 5 * rank if what == "batch_size" else 10)
    options: dict[str, Any] = {"save_every": 5 + rank} if what == "options" else {}
    model = DeepFM(ds.schema, dim=4, hidden=(8 + (rank if what == "model" else 0),))
    more: dict[str, Any] = {}
    if what == "optimizer":
        more["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    if what == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    try:
        trainer = Trainer(model, options=replace(QUIET, **options), **more)
        trainer.fit(ds.shard(0, 5) if what == "shard" else ds)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def quiet(folder: str) -> dict[str, Any]:
    """Which rank wrote what."""
    import contextlib
    import io

    ds = data_of(200, 10)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        trainer = Trainer(model_of(ds, "deepfm"), options=TrainOptions(progress="lines", log_every=5))
        trainer.fit(ds, ds, epochs=1)
    return {"said": said.getvalue(), "main": trainer.is_main}
