"""Whole training steps for `tiers_gpu.py`: a model with fixed tables, and with dynamic ones that know their ids.

Both are replayed as CUDA graphs, as a Trainer runs them; slots of dynamic tables are found before each replay.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from embedding_gpu_ours import batch_of, collection, learner_of, optimizer, with_graphs
from gpu_models import Shape, sample, shape_of
from tiers_gpu_keys import clock, passed

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.ops.row_groups.triton import Sizes
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner, StepResult, train_step
from hybridrec.types import Batch

MODEL = "small"
ONE_BY_ONE = Sizes(
    ids=64, few=2, chunk=4, programs=1, warps=1, turns=1
)  # for the interpreter, which runs programs in turn


def steps(args: Any, device: str) -> dict[str, Any]:
    """ms of a step with each kind of table, and how many times that of fixed ones the dynamic ones take.

    Both train on the same batches, one step of each in turn, and agree in their loss. All batches have been trained on
    once before: dynamic tables have the rows of all their ids, and memory for them. Nobody waits for a step that is
    timed: the host is ahead of the device, as in training.
    """
    shape = shape_of("criteo", 20) if device == "cpu" else shape_of(MODEL)
    given = [batch_of(shape, args.batch, sample(shape, args.batch, number, device)) for number in range(args.batches)]
    learners = {"fixed": learner(shape, device, False), "dynamic": learner(shape, device, True)}
    for batch in given:
        losses = {name: step(each, batch).loss for name, each in learners.items()}
        assert abs(losses["dynamic"] - losses["fixed"]) <= 0.01 * abs(losses["fixed"]), f"losses differ: {losses}"
    times: dict[str, list[Any]] = {name: [] for name in learners}
    for number in range(args.steps):
        for name, each in learners.items():
            begin = clock(torch.device(device))
            step(each, given[number % len(given)])
            times[name].append((begin, clock(torch.device(device))))
    found = {f"{name}_ms": median(passed(*pair) for pair in each) for name, each in times.items()}
    for each in learners.values():
        each.settle()
        assert each.graphs is None or each.graphs.refused is None, each.graphs.refused
    return {**found, "dynamic_vs_fixed": found["dynamic_ms"] / found["fixed_ms"]}


def step(learner: Learner, batch: Batch) -> StepResult:
    return train_step(learner, [Placed(batch, float(len(batch)))])


def learner(shape: Shape, device: str, dynamic: bool) -> Learner:
    """One for the model with tables of either kind."""
    torch.manual_seed(0)
    emb = collection(shape, device, dynamic=dynamic)
    if device == "cpu":
        emb.adopt(interpreted(emb))
    made = learner_of(shape, emb, optimizer(shape, emb), device)
    return made if device == "cpu" else with_graphs(made)


def interpreted(like: hr.EmbeddingCollection) -> DeviceGroup:
    """The tables of a collection of the CPU as a GPU has them, for Triton's interpreter."""
    made = {
        name: (DeviceHashStore if table.dynamic else DeviceStore)(table, like.seed, torch.device("cpu"))
        for name, table in like.tables.items()
    }
    return DeviceGroup(made, like.trainable, ONE_BY_ONE)
