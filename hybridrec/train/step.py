"""The training loop itself. It is short so that you may copy it and make it yours.

    for group in grouped(batches, accumulate):  # waits for data
        result = train_step(learner, group)     # forward, backward, clip, update

The Trainer runs just this, and adds what stands around it: metrics, validation, checkpoints, progress.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, SupportsFloat, TypeVar

import torch
from torch import Tensor, nn

from hybridrec.embedding import EmbeddingCollection
from hybridrec.embedding.owner import groups_of
from hybridrec.ops.dense_update.unless_finite import clear_unless_finite
from hybridrec.optim import RowOptimizer, clip_grad_norm_
from hybridrec.optim.bare import bare_step, drop_gradients
from hybridrec.parallel.ranks import Ranks
from hybridrec.train.late_loss import LateLoss, LateLosses, LossNotFinite
from hybridrec.train.losses import Divisor, Loss, loss_of, weight_of
from hybridrec.train.placed import Placed
from hybridrec.train.stages import Stages
from hybridrec.train.step_shares import StepShare, step_shares
from hybridrec.train.together import on_all
from hybridrec.types import Batch

if TYPE_CHECKING:
    from hybridrec.ops.dense_update.op import DenseUpdate
    from hybridrec.train.graphs import StepGraphs

Given = TypeVar("Given")


@dataclass(eq=False)
class Learner:
    """What a step needs: the model, the loss, an optimizer for the layers and one for the rows (either may be absent).

    `clip_norm` bounds the gradients of layers and rows together. `bf16` computes the layers in bfloat16. `device` is
    where batches are moved first. With `graphs`, steps on a GPU are replayed as CUDA graphs; the loss of such a step is
    `late`, since nobody waits for it: one of the next steps checks it, or `settle()`, which also waits for what lookups
    on a device had to tell. With `ranks`, the model is one of `hr.shard`, and every rank makes the same steps.
    """

    model: nn.Module
    loss: Loss
    dense: torch.optim.Optimizer | None = None
    rows: RowOptimizer | None = None
    clip_norm: float | None = None
    bf16: bool = False
    device: torch.device | None = None
    label_weights: Tensor | None = None
    graphs: StepGraphs | None = None
    late: LateLoss | None = None  # of this step
    losses: LateLosses = field(default_factory=LateLosses)  # of the last ones
    ranks: Ranks | None = None
    stages: Stages = field(default_factory=Stages)
    _fused: DenseUpdate | None = field(default=None, init=False)

    def outputs(self, batch: Batch) -> Tensor:
        """The model's outputs in float32."""
        with self._autocast():
            return self.model(batch).float()

    def reduced(self, outputs: Tensor, batch: Batch, divisor: Divisor) -> Tensor:
        """The loss of a batch, one number."""
        if self.ranks is not None and not len(batch):
            return outputs.sum() * 0.0  # nothing to learn here, but the others wait for this rank's backward
        return loss_of(self.loss, outputs, batch, divisor, self.label_weights)

    def _autocast(self) -> AbstractContextManager:
        if not self.bf16:
            return nullcontext()
        return torch.autocast("cpu" if self.device is None else self.device.type, dtype=torch.bfloat16)

    def place(self, batch: Batch) -> Placed:
        """The batch where the model wants it. Its labels are checked before it moves: nobody waits for a GPU."""
        self.loss.check_labels(batch)
        weight, moved = weight_of(self.loss, batch), self.moved(batch)
        for collection in self.collections if self.device is not None else ():
            collection.fetch(moved)
        return Placed(moved, weight)

    @cached_property
    def collections(self) -> list[EmbeddingCollection]:
        """Those inside the model."""
        return [part for part in self.model.modules() if isinstance(part, EmbeddingCollection)]

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Those of the model: to walk through it takes as long as all else that is done to find a step's graph."""
        return list(self.model.parameters())

    def moved(self, batch: Batch) -> Batch:
        """The batch where the model wants it."""
        return batch if self.device is None else batch.to(self.device, non_blocking=True)

    def step_layers(self) -> None:
        """Update the layers by the gradients that are there; on a GPU in one launch, not at all if the loss is lost."""
        if self.dense is None:
            return
        if self.device is None:
            return self.dense.step()
        if self._fused is None or self._fused.optimizer is not self.dense:
            from hybridrec.ops.dense_update.op import DenseUpdate  # which needs Triton

            self._fused = DenseUpdate(self.dense)
        self._fused.step(None if self.late is None else self.late.loss)

    def settle(self) -> None:
        """Wait for all lookups and the losses of the last steps: an error where one is not as it should be.

        What a lookup on a device finds is told by a later one, and this is for whoever makes no more of them. With
        `ranks`, all of them call it, and an error of one is told by all.
        """
        on_all(self.ranks, self._check)

    def _check(self) -> None:
        self.losses.check(0)
        for _, group in groups_of(self.model):
            group.check()

    def discard(self) -> None:
        """Drop all gradients."""
        for optimizer in (self.dense, self.rows):
            if optimizer is not None:
                optimizer.zero_grad()


@dataclass(frozen=True)
class StepResult:
    """What came of a step: the mean loss, and for each batch its outputs, without gradient."""

    found: SupportsFloat
    rows: int
    weight: float
    batches: Sequence[Batch]
    outputs: Sequence[Tensor]

    @property
    def loss(self) -> float:
        """The mean loss; waits for it where a GPU still computes it."""
        return float(self.found)


def device_of_model(model: nn.Module) -> torch.device | None:
    """The device of a model that is not on the CPU; None for one that is.

    >>> device_of_model(nn.Linear(1, 1))
    """
    return next((part.device for part in model.parameters() if part.device.type != "cpu"), None)


def grouped(batches: Iterable[Given], size: int, stages: Stages | None = None) -> Iterator[list[Given]]:
    """The batches `size` at a time; the last group may be smaller. Time spent here is time spent waiting for data."""
    each = iter(batches)
    while True:
        if stages is not None:
            stages.enter("data")
        group = list(islice(each, size))
        if stages is not None:
            stages.enter("other")
        if not group:
            return
        yield group


def train_step(learner: Learner, group: Sequence[Batch | Placed]) -> StepResult:
    """One update by the rows of these batches together: the gradients are those of their common (weighted) mean.

    A loss that is not finite is a FloatingPointError; after it, and any other error, no weight has changed and no
    gradient is left. With `learner.graphs` one of the next steps raises it.
    """
    learner.late = None
    learner.losses.check()
    placed = [each if isinstance(each, Placed) else learner.place(each) for each in group]
    batches, total = [each.batch for each in placed], sum(each.weight for each in placed)
    graphs = learner.graphs if len(placed) == 1 else None
    try:
        shares = step_shares(placed, learner.ranks, learner.loss.across)
        done = [_gradients(learner, each.batch, share, graphs) for each, share in zip(placed, shares, strict=True)]
    except BaseException:
        learner.discard()
        raise
    learner.stages.enter("step")
    update(learner)
    learner.stages.enter("other")
    losses, outputs = [loss for loss, _ in done], [out for _, out in done]
    found = losses[0] if len(losses) == 1 else sum(map(float, losses))
    return StepResult(found, sum(map(len, batches)), total, batches, outputs)


def _gradients(
    learner: Learner, batch: Batch, share: StepShare, graphs: StepGraphs | None
) -> tuple[SupportsFloat, Tensor]:
    """Forward and backward of a batch: its part of the loss, and its outputs."""
    learner.stages.enter("forward")
    graph = None if graphs is None else graphs.find(learner, batch)
    if graph is not None:
        learner.late = late = graph.replay(batch, share.divisor)  # the backward is part of it
        learner.losses.add(late)
        return late, late.outputs
    learner.losses.check(0)
    if learner.ranks is not None:
        learner.model.weigh(share.weight)  # pyright: ignore[reportCallIssue] (of a ShardedModel)
    outputs = learner.outputs(batch)
    loss = learner.reduced(outputs, batch, share.divisor)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise LossNotFinite(value, outputs, batch)
    learner.stages.enter("backward")
    loss.backward()
    return value * share.scale, outputs.detach()


def update(learner: Learner) -> None:
    """Clip, then update layers and rows by the gradients that are there, and drop them."""
    dense, rows = learner.dense, learner.rows
    if learner.clip_norm is not None:
        if learner.late is not None:
            clear_unless_finite(learner.model.parameters(), learner.late.loss)
        clip_grad_norm_(learner.model.parameters(), [] if rows is None else rows, learner.clip_norm)
    if dense is not None:
        learner.step_layers()
        drop_gradients(dense)
    if rows is not None:
        bare_step(rows)
