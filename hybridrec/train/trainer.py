"""Trainer: fit, evaluate, predict. What it does at each step stands in `step.py`, what around it in `fit.py`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hybridrec.data.dataset import Dataset
from hybridrec.data.frame import check_alike
from hybridrec.data.schema import Schema
from hybridrec.metrics import MetricSet
from hybridrec.parallel.watch import guarded
from hybridrec.train.bf16 import check_bf16
from hybridrec.train.cache_choice import CacheChoice, first_of
from hybridrec.train.callbacks import Callback, Callbacks
from hybridrec.train.environment import environment
from hybridrec.train.evaluation import evaluate, metric_set
from hybridrec.train.fit import Fit
from hybridrec.train.history import History, Record
from hybridrec.train.interruption import Interrupted
from hybridrec.train.labels import label_names, label_weights
from hybridrec.train.locate import located
from hybridrec.train.losses import Loss, LossFunction, make_loss
from hybridrec.train.optimizers import DenseChoice, RowChoice, dense_optimizer, describe, row_optimizer
from hybridrec.train.options import TrainOptions
from hybridrec.train.prediction import predict
from hybridrec.train.run_directory import RunDirectory
from hybridrec.train.run_state import RunState
from hybridrec.train.step import Learner, device_of_model
from hybridrec.train.table_figures import plan
from hybridrec.train.tiers import caution
from hybridrec.train.together import inside, is_main, join, sharded, share_of
from hybridrec.train.validation import fresh
from hybridrec.types import Batch

if TYPE_CHECKING:
    from hybridrec.server.placing import GivenServers

log = logging.getLogger("hybridrec.train")


class Trainer:
    """Trains a model on batches: one line for the usual, and every part of it can be had alone.

    `model(batch)` gives outputs; any module will do. `optimizer` is one of torch, or a function of parameters;
    `row_optimizer` one of `hybridrec.optim`, or a function of the model; without them, Adam(2e-3) and
    RowWiseAdagrad(0.02). `loss` is "bce", "mse", "softmax", "in_batch_softmax" or a function of (outputs, batch).
    `out` is the folder of the run. Everything else is in `options`. Started by torchrun, the model is sharded over all
    ranks (`hr.shard`), a Dataset too, and rank 0 writes. With `servers`, addresses such as "host:7000", rows of tables
    lie there, and lookups may go `staleness` steps ahead of updates; see `hr.shard`. Tables that do not fit a GPU
    beside the steps of `fit` get a `cache` there if they do not say where their rows are, which is logged.

    >>> import hybridrec as hr
    >>> from hybridrec.models import DeepFM
    >>> ds = hr.data.table({"user": [1, 2, 3, 4] * 25, "click": [0, 1, 1, 0] * 25}, label="click", batch_size=10)
    >>> trainer = Trainer(DeepFM(ds.schema, dim=4), options=TrainOptions(progress="none"))
    >>> history = trainer.fit(ds, epochs=5)
    >>> trainer.step, round(trainer.evaluate(ds)["auc"], 2)
    (50, 1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: DenseChoice = None,
        row_optimizer: RowChoice = None,
        *,
        out: str | os.PathLike[str] | None = None,
        loss: str | Loss | LossFunction = "bce",
        metrics: Sequence[str] | None = None,
        callbacks: Iterable[Callback] = (),
        options: TrainOptions | None = None,
        servers: GivenServers | None = None,
        staleness: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module, as those of hr.models")
        if not isinstance(options, TrainOptions | None):
            raise TypeError(f"options is {options!r}; it must be TrainOptions, such as TrainOptions(clip_norm=1.0)")
        if isinstance(metrics, str):
            raise TypeError(f"metrics is the string {metrics!r}; it must be a list, such as [{metrics!r}]")
        self.options = options or TrainOptions()
        self._ranks = join(self.options.timeout)
        made = {"optimizer": optimizer, "row_optimizer": row_optimizer}
        self.model = self._placed(model, made, servers, staleness)
        self._loss, self._choices = make_loss(loss), (optimizer, row_optimizer)
        if self._caches is None or not self._caches.waits:
            _ = self.learner
        self.metrics = metrics
        self.run = None if out is None else RunDirectory(out)
        self.state = RunState()
        self.history = History()
        self.about: dict[str, Any] = {}  # more for config.json
        self.stop_reason: str | None = None
        self.callbacks = Callbacks([*callbacks, *self._own_callbacks()])

    def _placed(
        self, model: nn.Module, made: dict[str, Any], servers: GivenServers | None, staleness: int | None
    ) -> nn.Module:
        """The model with its rows where they belong."""
        ranks = self._ranks
        if ranks is not None and self.options.graphs:
            raise ValueError(f"TrainOptions.graphs is true, but there are {ranks.world} ranks; leave it out")
        if servers is not None and ranks is not None and self.options.clip_norm is not None:
            raise ValueError(
                f"TrainOptions.clip_norm is {self.options.clip_norm}, but rows are on servers, and no trainer of "
                f"{ranks.world} knows the norm of all gradients; leave it out, or bound rows with clip_row_norm"
            )
        alone = ranks is None and servers is None  # else a plan says where rows are
        self._caches = CacheChoice(model, made["row_optimizer"]) if alone else None
        if self._caches is not None:
            self._caches.make()
        return sharded(model, ranks, made, servers, staleness, training=True)

    @cached_property
    def learner(self) -> Learner:
        """What makes steps. Where tables may fill a card it is made when first used: by `fit`, which knows batches."""
        if self._caches is not None:
            self._caches.tell()
        return self._learner(self.model, self._loss, *self._choices)

    def _learner(self, model: nn.Module, loss: Loss, dense: DenseChoice, rows: RowChoice) -> Learner:
        options, ranks = self.options, self._ranks
        made = dense_optimizer(model, dense), row_optimizer(model, rows)
        if made == (None, None):
            raise ValueError(f"{type(model).__name__} has neither parameters nor tables to train")
        if options.compile:
            compile_model(inside(model), options.compile)
        device = device_of_model(model)
        if options.bf16 and device is not None:
            check_bf16(device)
        learner = Learner(
            model, loss, *made, clip_norm=options.clip_norm, bf16=options.bf16, device=device, ranks=ranks
        )
        if ranks is not None:
            return learner
        if options.graphs or (options.graphs is None and device is not None and device.type == "cuda"):
            from hybridrec.train.graphs import graphs_for

            learner.graphs = graphs_for(learner, wanted=options.graphs)
        return learner

    def _own_callbacks(self) -> list[Callback]:
        if not self.options.tensorboard:
            return []
        from hybridrec.train.tensorboard import TensorBoard

        return [TensorBoard()]

    # -- what it does ---------------------------------------------------------------------------------------

    def fit(
        self,
        train: Iterable[Batch],
        validate: Iterable[Batch] | None = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> History:
        """Train for so many epochs (1) or steps, whichever ends first; returns all records of the run.

        `resume="auto"` goes on from the newest checkpoint in the folder of the run, if there is one; a path from that
        one. `epochs` and `steps` then count from where the run first began.
        """
        for name, value in (("epochs", epochs), ("steps", steps)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 on")
        if isinstance(resume, bool):
            raise TypeError(f"resume is {resume}; it must be 'auto', the path of a checkpoint, or None to begin anew")
        self._check_features(train)
        self.expect(train)
        weights = self.options.label_weights
        made = label_weights(weights, self.labels_of(train)) if weights else None
        self.learner.label_weights = made if made is None else made.to(self.learner.device or "cpu")
        if isinstance(size := getattr(train, "batch_size", None), int) and self._ranks is None:
            caution(self.model, size)
        Fit(self, train, validate, epochs, steps).run(None if resume is None else os.fspath(resume))
        return self.history

    def expect(self, data: Iterable[Batch]) -> None:
        """Leave room on the card for steps on this data, if rows have no memory yet; `fit` does it for its own.

        Rows then get their memory with the first use of `learner`, and no data changes that any more.
        """
        if "learner" in vars(self) or self._caches is None or not self._caches.waits:
            return
        first = first_of(data)
        if first is not None:
            self._caches.make(first, self.options.accumulate)

    def evaluate(self, data: Iterable[Batch]) -> dict[str, float]:
        """The loss and the metrics of the model on some data; many ranks share its rows, and find the same."""
        self._check_features(data)
        data = share_of(data, self._ranks)
        with self.guarded(), located(data):
            return self.measured(fresh(data), data)

    def predict(
        self,
        data: Any,
        out: str | os.PathLike[str] | None = None,
        columns: Sequence[str] = (),
        force: bool = False,
    ) -> np.ndarray | int:
        """Scores of a Dataset or frame in the order of its rows: an array, or a Parquet file `out`.

        The file has the `columns` of the data that are named, as they are, then `score` (with several labels
        `score_click`, `score_like`, ...); the number of rows is returned. Many ranks share the rows of each batch;
        rank 0 writes, and all return the same.
        """
        with self.guarded():
            return predict(self.learner, data, self._schema(data), out=out, columns=columns, force=force)

    def stop(self, reason: str = "stop() was called") -> None:
        """End the fit after this step, as if it were done; for callbacks."""
        self.stop_reason = reason

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        """Whether this process writes the folder of the run: the only one, or rank 0."""
        return is_main(self._ranks)

    def guarded(self) -> AbstractContextManager[None]:
        """Within it, an error of one rank ends all of them."""
        return guarded(None if self._ranks is None else self._ranks.watch, Interrupted)

    @property
    def step(self) -> int:
        """The steps done."""
        return self.state.step

    @property
    def epoch(self) -> int:
        """The epochs done."""
        return self.state.epoch

    def labels_of(self, data: Any) -> tuple[str, ...]:
        """The names of the labels."""
        return label_names(self.model, data)

    def metrics_for(self, data: Any) -> MetricSet | None:
        """New metrics, as this trainer keeps them."""
        return metric_set(self._loss, self.labels_of(data), self.metrics)

    def main_metric(self, data: Any) -> str:
        """The metric by which the best checkpoint is chosen: the first one, of the first label."""
        made = self.metrics_for(data)
        return "loss" if made is None else next(iter(made.compute()), "loss")

    def measured(
        self, batches: Iterable[Batch], data: Any, watch: Callable[..., Any] | None = None
    ) -> dict[str, float]:
        """The loss and the metrics over batches, with labels named as in `data`."""
        return evaluate(self.learner, batches, self.metrics_for(data), watch)

    def _check_features(self, data: Any) -> None:
        """Refuse a dataset whose features are made in another way than those that the model was made for."""
        made_for = getattr(self.model, "schema", None)
        if isinstance(made_for, Schema) and isinstance(data, Dataset):
            check_alike(data.schema, made_for)

    def _schema(self, data: Any) -> Schema:
        found = getattr(self.model, "schema", None)
        found = getattr(data, "schema", None) if found is None else found
        if not isinstance(found, Schema):
            raise ValueError("predict() needs the schema of the model's inputs; give a Dataset in place of a frame")
        return found

    # -- its folder -----------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """What this run is, as JSON values."""
        model = inside(self.model)
        kind = {"name": type(model).__name__.lower(), "class": f"{type(model).__module__}.{type(model).__qualname__}"}
        own = model.config() if hasattr(model, "config") else {}  # pyright: ignore[reportCallIssue]
        return {
            "version": 1,
            "model": {**kind, "config": own},
            "loss": self.learner.loss.name,
            "metrics": None if self.metrics is None else list(self.metrics),
            "optimizer": describe(self.learner.dense),
            "row_optimizer": describe(self.learner.rows),
            "train": self.options.to_json(),
            **self.about,
        }

    def describe_run(self, fit: Fit) -> None:
        """Write what is known before the first step into the folder."""
        if self.run is None or not self.is_main:
            return
        if self.state.step == 0:
            self.run.keep_records(0)
        self.run.write("config.json", self.config() | {"fit": {"epochs": fit.epochs, "steps": fit.steps}})
        self.run.write("plan.json", plan(self.model))
        self.run.write("environment.json", environment())
        schema = getattr(self.model, "schema", None) or getattr(fit.train, "schema", None)
        if isinstance(schema, Schema):
            self.run.write_schema(schema)

    def keep_record(self, record: Record) -> None:
        """One more record of the run."""
        self.history.records.append(record)
        if self.run is not None and self.is_main:
            self.run.append(record)

    def take_up_records(self) -> None:
        """After a resume: the records up to the checkpoint."""
        if self.run is not None:
            count = self.state.records
            self.history = History(self.run.keep_records(count) if self.is_main else self.run.records()[:count])

    def write_report(self) -> Path | None:
        """Make report.html anew; a report that cannot be made is no reason to lose a run."""
        if self.run is None or not self.is_main:
            return None
        try:
            from hybridrec.train.report import write

            return write(self.run.path)
        except Exception:
            log.exception("no report was written to %s", self.run.path)
            return None


def compile_model(model: nn.Module, how: bool | str) -> None:
    """Compile the layers in place with torch.compile; a string names the backend."""
    backend = {"backend": how} if isinstance(how, str) else {}
    if backend and how not in torch.compiler.list_backends(exclude_tags=()):
        usual = ", ".join(torch.compiler.list_backends())
        raise ValueError(f"compile is {how!r}; it must be true, false or a backend of torch: {usual}")
    compiled = getattr(model, "compile_dense", None)
    (compiled or model.compile)(**backend)
