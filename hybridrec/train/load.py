"""A run that was trained, ready to use: `hr.load("runs/a").predict(frame)`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hybridrec.data.schema import Schema
from hybridrec.parallel.ranks import TIMEOUT
from hybridrec.parallel.watch import guarded
from hybridrec.remedy import remedied
from hybridrec.train.cache_choice import give_caches
from hybridrec.train.checkpoint import Checkpoints, Contents
from hybridrec.train.checkpoint import load as load_checkpoint
from hybridrec.train.evaluation import evaluate, metric_set
from hybridrec.train.history import History
from hybridrec.train.labels import label_names, label_weights
from hybridrec.train.locate import located
from hybridrec.train.losses import LOSSES, Loss, LossFunction, make_loss
from hybridrec.train.prediction import predict
from hybridrec.train.run_directory import RunDirectory
from hybridrec.train.step import Learner, device_of_model
from hybridrec.train.together import inside, join, path_on_main, sharded, share_of
from hybridrec.train.validation import fresh
from hybridrec.types import Batch


class Run:
    """What `hr.load` gives: the `model` with its weights, the `schema` of its data, what was asked and what came out.

    `path` is the run's folder, `checkpoint` what the weights were read from, `config` and `history` its records.
    """

    def __init__(self, path: Path, checkpoint: Path, learner: Learner, schema: Schema | None) -> None:
        self.path, self.checkpoint, self.schema, self._learner = path, checkpoint, schema, learner
        folder = RunDirectory(path)
        self.config: dict[str, Any] = folder.read("config.json")
        self.history = History(folder.records())

    @property
    def model(self) -> nn.Module:
        return self._learner.model

    @property
    def metrics(self) -> dict[str, Any]:
        """The last validation, or {} where there was none."""
        found = self.history.valid
        return dict(found[-1]) if found else {}

    def predict(
        self,
        data: Any,
        out: str | os.PathLike[str] | None = None,
        columns: Sequence[str] = (),
        force: bool = False,
    ) -> np.ndarray | int:
        """Scores of a frame (pandas, polars, pyarrow, dict) or Dataset, row by row; see `Trainer.predict`."""
        schema = self.schema or getattr(data, "schema", None)
        if schema is None:
            raise ValueError(f"{self.path} has no schema.json, so a frame cannot be read as the model wants it")
        with self._guarded():
            return predict(self._learner, data, schema, out=out, columns=columns, force=force)

    def evaluate(self, data: Iterable[Batch]) -> dict[str, float]:
        """The loss and the metrics of the run on other data, which is read by the run's schema."""
        if self.schema is not None and hasattr(data, "with_schema"):
            data = data.with_schema(self.schema)  # pyright: ignore[reportAttributeAccessIssue]
        labels, data = label_names(self.model, data), share_of(data, self._learner.ranks)
        with self._guarded(), located(data):
            return evaluate(self._learner, fresh(data), metric_set(self._learner.loss, labels, self.config["metrics"]))

    def _guarded(self) -> AbstractContextManager[None]:
        ranks = self._learner.ranks
        return guarded(None if ranks is None else ranks.watch)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {type(inside(self.model)).__name__}, {self.checkpoint.name})"


def load(
    path: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] = "best",
    *,
    model: nn.Module | None = None,
    loss: Loss | LossFunction | None = None,
    device: str = "cpu",
) -> Run:
    """The run in a folder with the weights of its "best" checkpoint, the "latest", or one at a path.

    A model that is not of hybridrec is made by you and passed as `model=`; so is a loss of your own, for `evaluate`.
    The model is put on `device`, wherever it was trained. Started by torchrun, its rows are shared by all ranks, and
    `predict` and `evaluate` are called on all of them.

    >>> import tempfile, hybridrec as hr
    >>> from hybridrec.models import DeepFM
    >>> from hybridrec.train import Trainer, TrainOptions
    >>> ds = hr.data.table({"user": [1, 2] * 50, "click": [0, 1] * 50}, label="click", batch_size=20)
    >>> folder = tempfile.mkdtemp()
    >>> _ = Trainer(DeepFM(ds.schema, dim=4), out=folder, options=TrainOptions(progress="none")).fit(ds)
    >>> load(folder).predict({"user": [2, 1]}).shape
    (2,)
    """
    folder = RunDirectory(path)
    config = folder.read("config.json")
    schema = folder.schema() if (folder.path / "schema.json").exists() else None
    ranks = join(config.get("train", {}).get("timeout", TIMEOUT))
    found = path_on_main(ranks, lambda: _checkpoint(folder, checkpoint))
    assert found is not None, "there is a checkpoint, or an error"
    made = _model(config["model"], schema, device) if model is None else model
    if ranks is None:
        give_caches(made, None)
    made = sharded(made, ranks, {})
    load_checkpoint(found, Contents(inside(made)))
    chosen = _loss(config["loss"]) if loss is None else make_loss(loss)
    options = config["train"]
    weights = label_weights(options["label_weights"], label_names(made, None)) if options["label_weights"] else None
    made.eval()
    device_of = device_of_model(made)
    learner = Learner(made, chosen, bf16=options["bf16"], device=device_of, label_weights=weights, ranks=ranks)
    return Run(folder.path, found, learner, schema)


def _checkpoint(folder: RunDirectory, wanted: str | os.PathLike[str]) -> Path:
    kept = Checkpoints(folder.checkpoints)
    named = folder.checkpoints / wanted if (folder.checkpoints / wanted).is_dir() else Path(wanted)
    found = {"best": kept.best, "latest": kept.latest}.get(os.fspath(wanted), lambda: named)()
    if found is None and wanted == "best":
        found = kept.latest()
    if found is None:
        raise remedied(
            FileNotFoundError,
            f"{folder.path} has no complete checkpoint yet",
            call=f"train it with out={str(folder.path)!r}",
            setting=f"train it: hybridrec train DATA --out {folder.path} --resume",
        )
    if not found.is_dir():
        names = ", ".join(path.name for path in kept.all())
        raise FileNotFoundError(f"there is no checkpoint {found}; {folder.path} has best, latest, {names}")
    return found


def _model(told: Mapping[str, Any], schema: Schema | None, device: str) -> nn.Module:
    from hybridrec.models import NAMES, build

    if told["name"] not in NAMES or not told["class"].startswith("hybridrec."):
        raise ValueError(
            f"the run's model is {told['class']}, which is not of hybridrec; make one and pass it as model="
        )
    assert schema is not None, "models of hybridrec have a schema"
    return build(told["name"], schema, device=device, **told["config"])


def _loss(name: str) -> Loss:
    """The loss by name; of a function of somebody's own only the name is known, and its scores are sigmoids."""
    return LOSSES.get(name) or Loss(name, _unknown_loss)


def _unknown_loss(*_: Any) -> Any:
    raise ValueError("the run was trained with a loss of your own; pass it to hybridrec.load as loss=")
