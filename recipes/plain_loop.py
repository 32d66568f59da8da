"""A training loop in plain PyTorch over the parts of hybridrec: what recipes use, and what anybody may copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hybridrec.types import Batch


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizers: Sequence[Optimizer],
    epochs: int = 1,
    schedules: Sequence[LRScheduler] = (),
    label_weights: Sequence[float] | None = None,
) -> list[float]:
    """Train on binary labels; the mean loss of each epoch. Every iteration over `batches` is an epoch."""
    losses = []
    shares = None if label_weights is None else torch.tensor(label_weights)
    model.train()
    for _ in range(epochs):
        total, rows = 0.0, 0
        for batch in batches:
            assert batch.label is not None, "the dataset names its label"
            loss = binary_cross_entropy_with_logits(model(batch), batch.label, weight=shares)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for schedule in schedules:
                schedule.step()
            total, rows = total + len(batch) * float(loss.detach()), rows + len(batch)
        losses.append(total / max(rows, 1))
    return losses


def falling(optimizer: Optimizer, steps: int) -> LambdaLR:
    """A schedule that takes the rates of an optimizer to 0 in a line."""
    return LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Labels and probabilities of all rows, each [n] or [n, k]."""
    model.eval()
    labels, scores = [], []
    for batch in batches:
        labels.append(batch.label)
        scores.append(model(batch).sigmoid())
    return torch.cat(labels), torch.cat(scores)
