"""Whole training steps for `tiers_gpu.py`: a model with fixed tables, and with dynamic ones that know their ids."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from embedding_gpu_ours import batch_of, collection, learner_of, optimizer
from gpu_models import Shape, sample, shape_of
from tiers_gpu_keys import clock, passed

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.ops.row_groups.triton import Sizes
from hybridrec.train.placed import Placed
from hybridrec.train.step import train_step
from hybridrec.types import Batch

MODEL = "small"
ONE_BY_ONE = Sizes(ids=16, few=2, chunk=4, programs=1, warps=1)  # for the interpreter, which runs programs in turn


def steps(args: Any, device: str) -> dict[str, Any]:
    """ms of a step with each kind of table, and how many times that of fixed ones the dynamic ones take.

    Both train on the same batches, one step of each in turn, and agree in their loss. All batches have been trained on
    once before: dynamic tables have the rows of all their ids, and memory for them.
    """
    shape = shape_of("criteo", 20) if device == "cpu" else shape_of(MODEL)
    given = [batch_of(shape, args.batch, sample(shape, args.batch, number, device)) for number in range(args.batches)]
    trainers = {"fixed": trainer(shape, device, False), "dynamic": trainer(shape, device, True)}
    for batch in given:
        losses = {name: train(batch) for name, train in trainers.items()}
        assert abs(losses["dynamic"] - losses["fixed"]) <= 0.01 * abs(losses["fixed"]), f"losses differ: {losses}"
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(args.steps):
        for name, train in trainers.items():
            begin = clock(torch.device(device))
            train(given[number % len(given)])
            times[name].append(passed(begin, clock(torch.device(device))))
    found = {f"{name}_ms": median(each) for name, each in times.items()}
    return {**found, "dynamic_vs_fixed": found["dynamic_ms"] / found["fixed_ms"]}


def trainer(shape: Shape, device: str, dynamic: bool) -> Callable[[Batch], float]:
    """What takes a step on a batch, launched one by one as tables that grow need it, and gives its loss."""
    torch.manual_seed(0)
    emb = collection(shape, device, dynamic=dynamic)
    if device == "cpu":
        emb.adopt(interpreted(emb))
    learner = learner_of(shape, emb, optimizer(shape, emb), device)
    return lambda batch: train_step(learner, [Placed(batch, float(len(batch)))]).loss


def interpreted(like: hr.EmbeddingCollection) -> DeviceGroup:
    """The tables of a collection of the CPU as a GPU has them, for Triton's interpreter."""
    made = {
        name: (DeviceHashStore if table.dynamic else DeviceStore)(table, like.seed, torch.device("cpu"))
        for name, table in like.tables.items()
    }
    return DeviceGroup(made, like.trainable, ONE_BY_ONE)
