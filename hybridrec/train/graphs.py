"""StepGraphs: forward, loss and backward of a step as one CUDA graph, replayed for all batches of one shape.

A replay is one launch, however many kernels the model has, so Python is not what the GPU waits for. The row update is
replayed too (see `hybridrec.embedding.gpu.replay`); the optimizer of the layers is one launch (`DenseUpdate`).
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hybridrec.embedding.gpu.replay import captured
from hybridrec.embedding.owner import groups_of
from hybridrec.models.model import Model
from hybridrec.train.fixed_batch import FixedBatch, shape_of
from hybridrec.train.late_loss import LateLoss
from hybridrec.train.losses import LOSSES, Divisor
from hybridrec.types import Batch

if TYPE_CHECKING:
    from hybridrec.train.step import Learner

log = logging.getLogger("hybridrec.train")

SEEN = 3  # batches of a shape that run without a graph first: they compile and warm up what a capture needs
MOST = 4  # shapes that get a graph


def graphs_for(learner: Learner, wanted: bool | None) -> StepGraphs | None:
    """Graphs for a learner; where it is left to us, only with a model and a loss that are known to do no more.

    A replay repeats kernels: what Python code of a model does beside them, it does once.
    """
    groups = [group for _, group in groups_of(learner.model)]
    if any(getattr(group, "prepares", False) for group in groups):
        if wanted:
            raise ValueError(
                "TrainOptions.graphs is true, but the model is sharded, and how much ranks and servers send each other "
                "differs from step to step; leave graphs out"
            )
        return None
    if learner.device is None or not all(hasattr(group, "withdraw") for group in groups):
        if wanted:
            what = "layers" if learner.device is None else "rows"
            raise ValueError(
                f"TrainOptions.graphs is true, but {what} of the model are on the CPU; make it with device='cuda' and "
                "no table with where='host', or leave graphs out"
            )
        return None
    known = isinstance(learner.model, Model) and learner.loss in LOSSES.values()
    return StepGraphs() if wanted or known else None


class StepGraphs:
    """The graphs of a learner, by the shape of batches. `refused` says why there are none, where that is so."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self._seen: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, StepGraph] = {}
        self.replays = 0

    def find(self, learner: Learner, batch: Batch) -> StepGraph | None:
        """The graph for batches like this one; None where it runs without."""
        if self.refused is not None or not learner.model.training or not len(batch):
            return None
        if torch.are_deterministic_algorithms_enabled():
            return None
        trained = tuple(part.requires_grad for part in learner.parameters)
        key = shape_of(batch), trained, tuple(part.training for part in learner.collections)
        found = self._graphs.get(key)
        if found is None or not found.batch.fits(batch):
            self._seen[key] += 1
            if self._seen[key] <= SEEN or (found is None and len(self._graphs) >= MOST):
                return None
            found = self._capture(learner, batch, key)
        self.replays += found is not None
        return found

    def _capture(self, learner: Learner, batch: Batch, key: Hashable) -> StepGraph | None:
        before = self._graphs.pop(key, None)
        stream = torch.cuda.current_stream(learner.device)
        try:
            self._graphs[key] = StepGraph(learner, batch, None if before is None else before.batch)
            return self._graphs[key]
        except (RuntimeError, ValueError, TypeError) as error:
            self.refused = f"the step cannot be captured as a CUDA graph: {_first(error)}"
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own
        learner.discard()
        gc.collect()  # its memory is held by the error's frames
        torch.cuda.empty_cache()
        log.warning("steps run without CUDA graphs: %s", self.refused)
        return None


def _first(error: BaseException) -> BaseException:
    """What went wrong first: where a capture is left by an error, its end raises another."""
    return error if error.__context__ is None else _first(error.__context__)


class StepGraph:
    """One captured step: the batch that it reads, the loss, outputs and gradients that it writes."""

    def __init__(self, learner: Learner, like: Batch, before: FixedBatch | None) -> None:
        assert learner.device is not None, "graphs are for models on a GPU"
        self.batch = FixedBatch(like, before)
        self.divisor = Divisor(*(torch.ones((), device=learner.device) for _ in range(2)))
        self._divisor = Divisor(1.0, 1.0)  # what is there
        self._one = torch.ones((), device=learner.device)  # the gradient of the loss, which a backward would make anew
        self._groups: list[Any] = [group for _, group in groups_of(learner.model)]
        learner.discard()
        for part in learner.collections:
            part.expect(self.batch.batch)
        for group in self._groups:
            group.fix(self.batch.batch.ids)
        self._again = captured(partial(self._capture, learner))

    def _capture(self, learner: Learner) -> None:
        """Compute; a capture that fails can end, and gives its memory back, when its streams are one again."""
        try:
            self._compute(learner)
        except BaseException:
            for group in self._groups:
                group.rejoin()
            raise

    def _compute(self, learner: Learner) -> None:
        """What is captured; each replay leaves its results where this one finds them."""
        outputs = learner.outputs(self.batch.batch)
        loss = learner.reduced(outputs, self.batch.batch, self.divisor)
        loss.backward(self._one)
        self._grads = [(part, part.grad) for part in learner.model.parameters() if part.grad is not None]
        self._looked = [group.withdraw() for group in self._groups]
        self.outputs, self.loss = outputs.detach(), loss.detach()

    def replay(self, batch: Batch, divisor: Divisor) -> LateLoss:
        """The loss and the outputs of a batch; its gradients are where a backward leaves them."""
        slots = [group.slots(self.batch.batch.ids, batch.ids) for group in self._groups]
        self.batch.fill(batch, [(to, each.values) for found in slots for to, each in found])
        if divisor != self._divisor:
            for there, number in zip(self.divisor, divisor, strict=True):
                there.fill_(number)  # pyright: ignore[reportAttributeAccessIssue] (tensors here)
            self._divisor = divisor
        self._again()
        for part, grad in self._grads:
            part.grad = grad
        for group, lookups, found in zip(self._groups, self._looked, slots, strict=True):
            for looked in lookups:
                group.take(looked, [each for _, each in found])
        for group in self._groups:
            group.go_on()
        return LateLoss(self.loss, self.outputs.clone(), batch, self._watch)

    def _watch(self) -> None:
        """Raise where a replay that is done had ids outside a table, or more rows than there is room for."""
        for group in self._groups:
            group.watch()
