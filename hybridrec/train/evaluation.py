"""How good a model is on some data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hybridrec.metrics import MetricSet
from hybridrec.remedy import remedied
from hybridrec.train.losses import Divisor, Loss
from hybridrec.train.step import Learner
from hybridrec.types import Batch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients: no dropout, no new rows; as it was before, afterwards."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before.items():
            module.training = training


class Measured(NamedTuple):
    """What metrics take of a batch."""

    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    groups: dict[str, Tensor]

    def apart(self) -> Measured:
        """The same in memory of its own: columns of a batch would keep all of it."""
        weights = None if self.weights is None else self.weights.clone()
        return Measured(
            self.scores, self.labels.clone(), weights, {name: column.clone() for name, column in self.groups.items()}
        )


def measured(metrics: MetricSet | None, loss: Loss, outputs: Tensor, batch: Batch) -> Measured | None:
    """What metrics take of a batch and the outputs for it; None where there are no metrics, or none that can."""
    if metrics is None or batch.label is None or not len(batch) or outputs.shape != batch.label.shape:
        return None
    groups = {name: group_of(batch, name) for name in metrics.group_columns}
    return Measured(loss.scores(outputs), batch.label, batch.weight, groups)


def take(metrics: MetricSet, parts: Sequence[Measured]) -> None:
    """Take batches into the metrics, all at once, which costs less than one by one."""
    if not parts:
        return
    groups = {name: _joined([part.groups[name] for part in parts]) for name in metrics.group_columns}
    weights = [part.weights for part in parts if part.weights is not None]
    scores, labels = _joined([part.scores for part in parts]), _joined([part.labels for part in parts])
    try:
        metrics.update(scores, labels, _joined(weights) if weights else None, groups)
    except ValueError as error:
        raise remedied(
            ValueError,
            f"the metrics cannot be taken: {error}",
            call="mend the column; labels other than 0 and 1 want loss='mse', or metrics= that take them",
            setting="mend the column; labels other than 0 and 1 want loss=mse, or metrics=[...] that take them",
        ) from error


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def group_of(batch: Batch, name: str) -> Tensor:
    """One number per row that says which group it belongs to: a column of single ids, or a tensor of `extra`."""
    if name in batch.ids.names and batch.ids.hotness[batch.ids.names.index(name)] == 1:
        return batch.ids.matrix(name)[:, 0]
    column = batch.extra.get(name)
    if isinstance(column, Tensor) and column.dim() == 1:
        return column
    single = [each for each, hot in zip(batch.ids.names, batch.ids.hotness, strict=True) if hot == 1]
    valid = [*single, *(each for each, found in batch.extra.items() if isinstance(found, Tensor))]
    raise ValueError(f"column {name!r} gives no group for each row; columns that do are {', '.join(valid) or 'none'}")


def evaluate(
    learner: Learner,
    batches: Iterable[Batch],
    metrics: MetricSet | None,
    watch: Callable[[Tensor, Batch], Any] | None = None,
) -> dict[str, float]:
    """The loss and the metrics over all rows, of all ranks; `watch` is shown the scores of every batch."""
    losses, weight, rows, ranks = 0.0, 0.0, 0, learner.ranks
    with evaluating(learner.model):
        for each in batches:
            batch, part, _ = learner.place(each)
            outputs = learner.outputs(batch)
            value = learner.reduced(outputs, batch, Divisor.of(part, part))
            losses, weight, rows = losses + float(value) * part, weight + part, rows + len(batch)
            part = measured(metrics, learner.loss, outputs, batch)
            if metrics is not None and part is not None:
                take(metrics, [part])
            if watch is not None:
                watch(learner.loss.scores(outputs), batch)
        learner.settle()
    if ranks is not None:
        totals = ranks.sum(torch.tensor([losses, weight, rows], dtype=torch.float64)).tolist()
        (losses, weight, rows), metrics = totals, None if metrics is None else metrics.together(ranks)
    if not rows:
        raise no_rows("there are no rows to evaluate on")
    found = {"loss": losses / weight if weight else float("nan"), **({} if metrics is None else metrics.compute())}
    return found if ranks is None else ranks.told(found)


def no_rows(what: str) -> ValueError:
    """The error of data that is empty."""
    return remedied(
        ValueError,
        what,
        call="look at the files, where() and split() of the dataset",
        setting="look at the files, and at the share of --valid",
    )


def metric_set(loss: Loss, labels: Sequence[str], names: Sequence[str] | None) -> MetricSet | None:
    """The metrics by name, for these labels; those of the loss where none are named."""
    chosen = loss.metrics if names is None else tuple(names)
    return MetricSet(labels=tuple(labels), metrics=chosen) if chosen else None
