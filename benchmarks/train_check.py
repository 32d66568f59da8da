"""No speed without the right answer: from the same weights and file, ours and the peers lose the same, step by step.

The optimizer is that of the benchmark, but its sums of squares begin at `SQUARES`. Where they begin at zero, the first
step of Adagrad is lr times the sign of a gradient, and gradients that cancel to nothing have the sign of rounding: in 1
of 50 draws of the weights that took the losses 1e-5 apart, and sometimes 1e-4.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from peers import plain_pytorch_train as plain
from peers import rowwise_train
from torch import Tensor
from train_ours import dataset, model_of, trainer_of
from train_workload import ID_NAMES, LR, Task, say

from hybridrec.models import DeepFM
from hybridrec.train.step import train_step

STEPS, TOLERANCE, SQUARES = 5, 1e-5, 0.01


@torch.no_grad()
def copy_weights(ours: DeepFM, theirs: plain.DeepFM, ids: int) -> None:
    """The weights of our model into the plain one."""
    every = torch.arange(ids)
    for name, wide, vectors in zip(ID_NAMES, theirs.wide.tables(), theirs.vectors.tables(), strict=True):
        wide.copy_(ours.wide.lookup(f"wide.{name}", every))
        vectors.copy_(ours.embeddings.lookup(name, every))
    parts: dict[str, Tensor] = dict(ours.net.named_parameters())
    theirs.fields.copy_(parts["fields.vectors"])
    theirs.slopes.copy_(parts["first.weight"][:, 0])
    theirs.bias.copy_(parts["first.bias"])
    theirs.deep.load_state_dict({name: parts[f"deep.{name}"] for name in theirs.deep.state_dict()})


def our_losses(task: Task, model: DeepFM) -> list[float]:
    learner = trainer_of(model, None, squares=SQUARES).learner
    return [train_step(learner, [batch]).loss for batch in islice(dataset(task), STEPS)]


def their_losses(model: plain.DeepFM, batches: Iterator[plain.Rows]) -> list[float]:
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LR, initial_accumulator_value=SQUARES)
    return [plain.step(model, optimizer, rows) for rows in islice(batches, STEPS)]


def check(task: Task) -> dict[str, Any]:
    """Losses of the first steps, and how far each peer is from ours."""
    torch.set_num_threads(task.threads)
    ours = model_of(dataset(task).schema, task.ids)
    peers = {kind: plain.DeepFM(task.ids, big=kind == "plain_big") for kind in ("plain_bags", "plain_big", "rowwise")}
    for model in peers.values():
        copy_weights(ours, model, task.ids)
    found = {"ours": our_losses(task, ours)}
    for kind, model in peers.items():
        batches = rowwise_train.batches(task) if kind == "rowwise" else plain.read(task.path, task.batch)
        found[kind] = their_losses(model, batches)
    apart = {kind: distance(found["ours"], losses) for kind, losses in found.items() if kind != "ours"}
    return {"passed": max(apart.values()) <= TOLERANCE, "apart": apart, "losses": found}


def distance(ours: list[float], theirs: list[float]) -> float:
    """The largest difference of two losses of the same step."""
    if len(ours) != STEPS:
        raise ValueError(f"the file has {len(ours)} batches; the check needs {STEPS}: more rows, or a smaller batch")
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    say(check(Task.from_json(sys.argv[1])))
