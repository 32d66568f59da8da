"""Jobs for rank processes: what a Trainer does there, as values that tests compare with one process."""

from __future__ import annotations

import contextlib
import io
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hybridrec as hr
from hybridrec.data import Dataset
from hybridrec.embedding.owner import groups_of
from hybridrec.models import DeepFM, TwoTower
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import ranks
from hybridrec.train import Callback, TensorBoard, Trainer, TrainOptions
from hybridrec.train.table_figures import TableFigures
from hybridrec.train.table_figures import stores as stores_of
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


def fitted_twice() -> dict[str, Any]:
    """Two fits that end in the middle of an epoch, when the batch after their last one is on its way already."""
    ds = data_of(200, 10)
    trainer = trainer_of(ds)
    for _ in range(2):
        trainer.fit(ds.shard_for_rank(by="batch"), steps=3)  # pyright: ignore[reportArgumentType]
    return {"scores": torch.from_numpy(np.asarray(trainer.predict(ds))), "step": trainer.step}


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


class LateFault(Callback):
    """From a step on, what a rank has looked up turns out not to be as it should."""

    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step

    def on_step(self, trainer: Trainer, result: Any) -> None:
        mine = ranks()
        if trainer.step == self.step and mine is not None and mine.rank == self.rank:
            group: Any = next(group for _, group in groups_of(trainer.model))

            def check() -> None:
                raise ValueError("an earlier lookup took its rows for zeros")

            group.check = check


def found_late(rank: int, what: str) -> str:
    """What a rank is told of a fault that one of them finds when the last step is made, or the last score."""
    ds = data_of(40, 20)
    fault = LateFault(rank, 1 if what == "predict" else 2)
    trainer = trainer_of(ds, callbacks=[] if what == "predict" else [fault], options={"log_every": 100})
    try:
        trainer.fit(ds.shard_for_rank(by="batch"), steps=2)
        fault.step = trainer.step
        fault.on_step(trainer, None)
        trainer.predict(ds)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def quiet(folder: str) -> dict[str, Any]:
    """Which rank wrote what."""
    ds = data_of(200, 10)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        trainer = Trainer(model_of(ds, "deepfm"), options=TrainOptions(progress="lines", log_every=5))
        trainer.fit(ds, ds, epochs=1)
    return {"said": said.getvalue(), "main": trainer.is_main}


def norms_of(scheme: str) -> dict[str, float | None]:
    """The mean norms of rows by table, as records have them."""
    team = ranks()
    tables = [hr.Table("wide", 5, rows=9), hr.Table("few", 3, rows=2), hr.Table("half", 4, rows=7, dtype=torch.float16)]
    model: Any = torch.nn.ModuleDict({"emb": hr.EmbeddingCollection(tables, seed=2)})
    if team is not None:
        columns = {"wide": (2, 2, 1), "few": (1, 2), "half": (3, 1)} if scheme == "column" else {}
        devices = {
            name: tuple(range(1, len(split) + 1)) if len(split) == 2 else (0, 1, 2) for name, split in columns.items()
        }
        every = tuple(range(team.world))
        placed = [Placement(t.name, scheme, devices.get(t.name, every), columns.get(t.name, ())) for t in tables]
        model = hr.shard(model, plan=Plan(team.world, tuple(placed)))
    figures = TableFigures(inside(model), team).take(norms=True)
    return {name: each["norm"] for name, each in figures.items()}


class Draws(Callback):
    """What each rank draws by its own generators after every step, and what it does after one of them."""

    def __init__(self, crash: int | None = None, sleep: float = 0.0) -> None:
        self.crash, self.sleep = crash, sleep
        self.drawn: list[float] = []

    def on_step(self, trainer: Trainer, result: Any) -> None:
        self.drawn += [float(torch.rand(1)), random.gauss(0, 1), float(np.random.randn())]  # noqa: NPY002
        time.sleep(self.sleep)
        if trainer.step == self.crash:
            raise ConnectionError("the power is gone")


def drawn(folder: str, crash: int | None = None, save_every: int | None = 3) -> dict[str, Any]:
    """A fit with dropout, from the beginning or from what is in the folder, with what this rank drew in it."""
    ds = data_of(240, 20)
    torch.manual_seed(0)
    model, draws = DeepFM(ds.schema, dim=4, hidden=(8,), dropout=0.5), Draws(crash)
    options = replace(QUIET, save_every=save_every, seed=3)
    trainer = Trainer(model, options=options, callbacks=[draws], out=folder)
    with contextlib.suppress(ConnectionError):
        trainer.fit(ds.shuffle(seed=1), epochs=2, resume="auto")
    found = {name: part.clone() for name, part in inside(trainer.model).named_parameters()}
    stores = {name: store.export() for name, store in stores_of(inside(trainer.model)).items()}
    rows = {f"{name} {part}": getattr(data, part) for name, data in stores.items() for part in ("ids", "rows")}
    return {"drawn": draws.drawn, "weights": found | rows, "step": trainer.step}


def saved_by_the_clock(folder: str, minutes: float) -> dict[str, Any]:
    """The steps whose checkpoints are there after a fit of some seconds."""
    ds = data_of(200, 4)
    options = {"save_minutes": minutes, "keep": 100}
    trainer = trainer_of(ds, options=options, out=folder, callbacks=[Draws(sleep=0.03)])
    trainer.fit(ds, steps=45)
    return {"step": trainer.step, "saved": sorted(path.name for path in Path(folder, "checkpoints").glob("step-*"))}


def events_of(folder: str, own: bool) -> list[str]:
    """The files of events that are there after a fit: of the Trainer's option, or of a callback that all ranks gave."""
    ds = data_of(100, 10)
    more: dict[str, Any] = {"callbacks": [TensorBoard(Path(folder) / "events")]} if own else {}
    trainer = trainer_of(ds, options={"tensorboard": not own}, out=Path(folder) / "run", **more)
    trainer.fit(ds, ds)
    return sorted(str(path.parent.name) for path in Path(folder).rglob("events.out*"))


def nan_scores(row: int, folder: str) -> str:
    """The error of a prediction over rows of which one has no score."""
    columns = clicks(40)
    trainer = trainer_of(hr.data.table(columns, label="click", batch_size=8))
    columns["age"][row] = np.nan
    spoilt = hr.data.table(columns, label="click", batch_size=8)
    said = []
    for more in ({}, {"out": Path(folder) / "scores.parquet"}):
        try:
            trainer.predict(spoilt, **more)
        except ValueError as error:
            said.append(str(error))
    return "\n".join(said)
