"""No speed without the right answer: a few steps of ours on the GPU beside the same on the CPU.

Small tables of the same model start from the same rows (a seed gives them bit for bit) and the same layers. Losses
and all rows are compared after the last step. The accumulators do not start at zero: there, the first step is lr
times the sign of the gradient, which rounding decides where a sum nearly cancels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from embedding_gpu_ours import batch_of, collection, learner_of, optimizer
from gpu_models import Sample, Shape, sample, shape_of
from gpu_process import Task, say
from torch import Tensor

from hybridrec.train.step import Learner, train_step

ACCUMULATOR = 1e-4
TOLERANCE = {False: 2e-5, True: 2e-3}  # of float32 rows, and of float16 ones, which lose bits at every step


def check(task: Task, model: str) -> float:
    """The largest difference found; ValueError where one is beyond the tolerance."""
    shape = shape_of(model, task.most_rows or 1_000)
    drawn = [sample(shape, task.batch, number, "cpu") for number in range(task.batches)]
    torch.manual_seed(0)
    want, got = (_learner(shape, device) for device in ("cpu", task.device))
    layers = [learner.model.get_submodule("layers") for learner in (want, got)]
    layers[1].load_state_dict(layers[0].state_dict())
    losses = [_train(*each, shape, task, drawn) for each in ((want, "cpu"), (got, task.device))]
    tolerance = TOLERANCE[shape.half]
    worst = compare("the losses", losses[1], losses[0], tolerance)
    for at, (rows, _) in enumerate(shape.tables):
        ours, theirs = _rows(got, at, rows, task.device), _rows(want, at, rows, "cpu")
        worst = max(worst, compare(f"the rows of t{at}", ours, theirs, tolerance))
    return worst


def _learner(shape: Shape, device: str) -> Learner:
    emb = collection(shape, device)
    rows = optimizer(shape, emb, initial_accumulator_value=ACCUMULATOR)
    return learner_of(shape, emb, rows, device, initial_accumulator_value=ACCUMULATOR)


def _train(learner: Learner, device: str, shape: Shape, task: Task, drawn: list[Sample]) -> Tensor:
    small = [replace(each, dense=each.dense / 100) for each in drawn]  # losses near 1, of which digits can be compared
    batches = [batch_of(shape, task.batch, each).to(device) for each in small]
    return torch.tensor([train_step(learner, [batch]).loss for batch in batches])


def _rows(learner: Learner, table: int, rows: int, device: str) -> Tensor:
    emb: Any = learner.model.get_submodule("embeddings")
    return emb.lookup(f"t{table}", torch.arange(rows, device=device)).float().cpu()


def compare(what: str, got: Tensor, want: Tensor, tolerance: float) -> float:
    apart = (got - want).abs()
    if not bool((apart <= tolerance * (1 + want.abs())).all()):
        raise ValueError(f"{what} differ from those on the CPU by {float(apart.max()):.3g}, more than {tolerance:g}")
    return float(apart.max())


def main() -> None:
    task = Task.received()
    found: dict[str, Any] = {}
    for model in task.model.split(","):
        try:
            found[model] = {"passed": True, "worst": check(task, model)}
        except Exception as reason:
            found[model] = {"passed": False, "reason": f"{type(reason).__name__}: {reason}"[:400]}
        say(found)


if __name__ == "__main__":
    main()
