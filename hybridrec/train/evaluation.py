"""How good a model is on some data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.metrics import MetricSet
from hybridrec.remedy import remedied
from hybridrec.train.losses import Loss, reduce, weigh
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


def measure(metrics: MetricSet | None, loss: Loss, *parts: tuple[Tensor, Batch]) -> None:
    """Take the outputs for batches into the metrics, where there are any that can: all at once, which costs less."""
    if metrics is None:
        return
    able = [(out, batch) for out, batch in parts if len(batch) and batch.label is not None]
    able = [(out, batch) for out, batch in able if batch.label is not None and out.shape == batch.label.shape]
    if not able:
        return
    groups = {name: _joined([group_of(batch, name) for _, batch in able]) for name in metrics.group_columns}
    weights = [batch.weight for _, batch in able if batch.weight is not None]
    labels = _joined([batch.label for _, batch in able if batch.label is not None])
    try:
        scores = loss.scores(_joined([out for out, _ in able]))
        metrics.update(scores, labels, _joined(weights) if weights else None, groups)
    except ValueError as error:
        raise remedied(
            ValueError,
            f"the metrics cannot be taken: {error}",
            call="mend the column; labels other than 0 and 1 want loss='mse', or metrics= that take them",
            setting="mend the column; labels other than 0 and 1 want loss=mse, or metrics=[...] that take them",
        ) from error


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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
    """The loss and the metrics over all rows; `watch` is shown the scores of every batch."""
    losses, weight, rows = 0.0, 0.0, 0
    with evaluating(learner.model):
        for each in batches:
            batch = learner.moved(each)
            learner.loss.check_labels(batch)
            outputs = learner.outputs(batch)
            weights, part = weigh(learner.loss, batch)
            value = reduce(learner.loss(outputs, batch), weights, part, part, learner.label_weights)
            losses, weight, rows = losses + float(value) * part, weight + part, rows + len(batch)
            measure(metrics, learner.loss, (outputs, batch))
            if watch is not None:
                watch(learner.loss.scores(outputs), batch)
    if not rows:
        raise no_rows("there are no rows to evaluate on")
    return {"loss": losses / weight if weight else float("nan"), **({} if metrics is None else metrics.compute())}


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
