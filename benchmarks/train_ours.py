"""One epoch of DeepFM by hybridrec: `hr.data.parquet`, `hr.models.DeepFM` with fixed tables, `hr.Trainer`.

Metrics and run directory are on, as by default; only the progress display is off. The clock begins before `fit` and
ends when the last weight is updated; the checkpoint and report that `fit` then writes are timed apart, since the
peers write none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from train_workload import DIM, HIDDEN, LR, Task, say
from workloads import LABEL

import hybridrec as hr
from hybridrec.data.schema import Schema
from hybridrec.models import DeepFM
from hybridrec.train import Callback, Trainer, TrainOptions
from hybridrec.types import Batch


class EpochEnd(Callback):
    """When the last epoch ended."""

    at = 0.0

    def on_epoch(self, trainer: Trainer) -> None:
        self.at = time.perf_counter()


def dataset(task: Task) -> hr.data.Dataset:
    return hr.data.parquet(task.path, label=LABEL, batch_size=task.batch, threads=task.threads)


def model_of(schema: Schema, ids: int) -> DeepFM:
    return DeepFM(schema, dim=DIM, hidden=HIDDEN, tables={"*": {"rows": ids}})


def trainer_of(model: DeepFM, out: str | None, callbacks: Iterable[Callback] = (), squares: float = 0.0) -> Trainer:
    """A Trainer with Adagrad for layers and rows, whose sums of squares begin at `squares`."""
    return Trainer(
        model,
        lambda parameters: torch.optim.Adagrad(parameters, lr=LR, initial_accumulator_value=squares),
        lambda module: hr.optim.Adagrad(module, lr=LR, initial_accumulator_value=squares),
        out=out,
        callbacks=callbacks,
        options=TrainOptions(progress="none"),
    )


def stages_of(records: Iterable[Any]) -> dict[str, float]:
    """Seconds by stage over all records of training, each weighed by its steps."""
    total: Counter[str] = Counter()
    for record, steps in trained(records):
        total.update({name: seconds * steps for name, seconds in record["stages"].items()})
    return dict(total)


def trained(records: Iterable[Any]) -> list[tuple[Any, int]]:
    """The records of training, and the steps that each sums up."""
    found = [record for record in records if record["kind"] == "train"]
    ends = [0, *(record["step"] for record in found)]
    return [(record, end - begin) for record, (begin, end) in zip(found, pairwise(ends), strict=True)]


def epoch(task: Task) -> dict[str, Any]:
    """Train once over the file."""
    torch.set_num_threads(task.threads)
    ended = EpochEnd()
    ds = dataset(task)
    with tempfile.TemporaryDirectory(dir=task.folder) as out:
        trainer = trainer_of(model_of(ds.schema, task.ids), out, [ended])
        start = time.perf_counter()
        history = trainer.fit(ds)
        closing = time.perf_counter() - ended.at
    seconds = ended.at - start
    stages = stages_of(history.records)
    steps = sum(spent for name, spent in stages.items() if name != "other")  # that one holds the way to the first step
    records = trained(history.records)
    return {
        "rows": trainer.state.rows,
        "seconds": seconds,
        "rows_per_s": trainer.state.rows / seconds,
        "loss": sum(record["loss"] * steps for record, steps in records) / trainer.step,
        "auc": records[-1][0]["auc"],  # of the predictions before each update, in the last stretch
        "loader_wait": stages["data"] / steps,
        "stages_ms": {name: 1e3 * spent / trainer.step for name, spent in stages.items()},
        "checkpoint_and_report_s": closing,
    }


def ready_batches(task: Task, count: int) -> list[Batch]:
    """The first batches of the file, in memory."""
    found: list[Batch] = []
    for batch in dataset(task):
        found.append(batch)
        if len(found) == count:
            break
    return found


if __name__ == "__main__":
    say(epoch(Task.from_json(sys.argv[1])))
