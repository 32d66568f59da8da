"""A process of `tiers_gpu.py`: the Medium model in float32, 206 GiB of rows that a Trainer spreads over card and host.

Nobody tells it which tables get a cache, nor how large: that is the Trainer's choice, who is shown a batch as `fit` is.
Batches are too large to keep many: they are drawn while the clock stands still, each once. Steps are timed a few at a
time until all that they began is done, the rows of the batch to come among it. A process tries one size of batches, and
says so where card or host lack the memory for it.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from embedding_gpu_ours import DENSE_LR, batch_of, collection, model_of, optimizer
from gpu_models import Sample, Shape, sample
from gpu_process import Task, say, tidy
from tiers_gpu_models import shape_of
from tiers_gpu_tiered import counted, hit_rate
from torch import Tensor

from hybridrec.embedding.gpu import memory
from hybridrec.train import Trainer, TrainOptions
from hybridrec.train.placed import Placed
from hybridrec.train.step import train_step
from hybridrec.types import Batch

AT_A_TIME = 4  # steps
WATCHED = 4_096  # rows of a table


def trainer_of(task: Task, shape: Shape) -> Trainer:
    """The Trainer, who has chosen; rows and their state have memory."""
    made = Trainer(
        model_of(shape, collection(shape, task.device), task.device),
        lambda parameters: torch.optim.Adagrad(parameters, lr=DENSE_LR, foreach=True),
        lambda rows: optimizer(shape, rows),
        options=TrainOptions(progress="none", graphs=None if task.device == "cpu" else True),
    )
    made.expect([like(shape, task.batch)])
    _ = made.learner
    return made


def like(shape: Shape, rows: int) -> Batch:
    """A batch as they will be, with any numbers, and nothing of it on the card."""
    ids = torch.empty(rows * shape.ids, dtype=torch.int64)
    return batch_of(shape, rows, Sample(ids, torch.empty(rows, shape.numbers), torch.empty(rows)))


class Steps:
    """Steps of a trainer on batches, each drawn once. Some rows of the largest table are watched."""

    def __init__(self, task: Task, shape: Shape, trainer: Trainer) -> None:
        self.task, self.shape, self.learner, self.batch = task, shape, trainer.learner, task.batch
        self.emb: Any = trainer.model.get_submodule("embeddings")
        self.number = 0
        self.table, self.rows = max(enumerate(rows for rows, _ in shape.tables), key=lambda each: each[1])
        self.watched = self._some_rows()
        self.used = torch.zeros(len(self.watched), dtype=torch.bool, device=task.device)
        self.before = self.emb.lookup(f"t{self.table}", self.watched)
        self.coming = self._drawn()

    def _some_rows(self) -> Tensor:
        """Half of them from all over the table, half from its begin, where ids are used most."""
        spread = torch.arange(WATCHED // 2) * max(1, self.rows // (WATCHED // 2)) % self.rows
        return torch.cat([spread, torch.arange(WATCHED // 2) % self.rows]).unique().to(self.task.device)

    def _drawn(self) -> Batch:
        drawn = sample(self.shape, self.batch, self.number, self.task.device)
        self.number += 1
        parts = drawn.ids.split([self.batch * hot for _, hot in self.shape.features])
        for (table, _), ids in zip(self.shape.features, parts, strict=True):
            if table == self.table:
                self.used |= torch.isin(self.watched, ids)
        return batch_of(self.shape, self.batch, drawn)

    def several(self, count: int) -> float:
        """ms of a step, of so many in a row, and of the admission of the batch that follows."""
        batches = [self.coming, *(self._drawn() for _ in range(count))]
        self._wait()
        begin = time.perf_counter()
        for batch, following in pairwise(batches):
            self.emb.fetch(following)
            self.result = train_step(self.learner, [Placed(batch, float(len(batch)))])
        self._wait()
        self.coming = batches[-1]
        return 1e3 * (time.perf_counter() - begin) / count

    def _wait(self) -> None:
        if self.task.device != "cpu":
            torch.cuda.synchronize()

    def check(self) -> None:
        """Rows that no batch had are what they were, bit by bit; of the others some are not; and all are numbers."""
        self.learner.settle()
        after = self.emb.lookup(f"t{self.table}", self.watched)
        same, used = (after == self.before).all(1), self.used.to(after.device)
        assert bool(same[~used].all()), f"{int((~same & ~used).sum())} rows changed that no batch had"
        assert bool((~same[used]).any()), "no row was trained"
        assert bool(after.isfinite().all()), "rows are numbers"


def measured(task: Task, shape: Shape, trainer: Trainer) -> dict[str, Any]:
    """ms of a step, and what became of the ids."""
    steps = Steps(task, shape, trainer)
    for _ in range(-(-task.warm // AT_A_TIME)):
        steps.several(AT_A_TIME)
    before = counted(steps.emb)
    times = [steps.several(AT_A_TIME) for _ in range(-(-task.steps // AT_A_TIME))]
    after = counted(steps.emb)
    steps.check()
    graphs = trainer.learner.graphs
    found = {"ms": median(times), "batch": task.batch, "batches": steps.number, "hit_rate": hit_rate(before, after)}
    return {**found, "loss": steps.result.loss, "no_graphs": None if graphs is None else graphs.refused}


def spread(emb: Any) -> dict[str, Any]:
    """Where the Trainer has put the rows."""
    tiered = [table for table in emb.tables.values() if table.cache is not None]
    return {
        "rows_gib": sum(table.fixed_rows * table.dim * table.dtype.itemsize for table in emb.tables.values()) / 2**30,
        "tables": len(emb.tables),
        "tiered_tables": len(tiered),
        "hot_rows": sum(table.cached(table.fixed_rows) for table in tiered),
        "tiered_rows": sum(table.fixed_rows for table in tiered),
        "cold_gib": sum(memory.cold_bytes(table) for table in tiered) / 2**30,
    }


def main() -> None:
    task = Task.received()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shape = shape_of(task.model, task.most_rows)
    found: dict[str, Any] = {}
    try:
        found |= measured(task, shape, begun(task, shape, found))
    except (torch.OutOfMemoryError, ValueError) as error:  # ValueError: the host has not the memory either
        found["lacked"] = f"{error}"[:400]
    if task.device != "cpu":
        found |= {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    say(found)


def begun(task: Task, shape: Shape, found: dict[str, Any]) -> Trainer:
    """The Trainer, its layers compiled; where it has put the rows, and how long that took, is found."""
    begin = time.perf_counter()
    trainer = trainer_of(task, shape)
    tidy(task)
    found |= {**spread(trainer.model.get_submodule("embeddings")), "begin_s": time.perf_counter() - begin}
    say(found)
    if task.device != "cpu":
        trainer.model.get_submodule("layers").compile()  # whose averages take twice the time of a step otherwise
    return trainer


if __name__ == "__main__":
    main()
