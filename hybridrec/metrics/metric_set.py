"""MetricSet: several metrics of several labels, updated together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor

from hybridrec.metrics.calibration_curve import CalibrationCurve, Curve
from hybridrec.metrics.faults import Faults
from hybridrec.metrics.host import brought
from hybridrec.metrics.metric import Gathers, Metric
from hybridrec.metrics.names import make
from hybridrec.metrics.rows import Rows, as_rows

DEFAULT = ("auc", "logloss", "ne", "calibration")


class MetricSet:
    """The same metrics for each label. Rows are checked once, and what metrics share is computed once.

    `metrics` are names (see `make`) or metrics, which serve as patterns. With one label results are named by
    metric, with several by label and metric: "click/auc".

    >>> both = MetricSet(labels=("click", "like"), metrics=("auc", "calibration"))
    >>> scores = torch.tensor([[0.25, 0.5], [0.75, 0.5]])
    >>> both.update(scores, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> both.compute()
    {'click/auc': 1.0, 'click/calibration': 1.0, 'like/auc': 0.5, 'like/calibration': 1.0}
    """

    def __init__(self, labels: Iterable[str] = ("label",), metrics: Iterable[str | Metric] = DEFAULT) -> None:
        patterns = [make(metric) if isinstance(metric, str) else metric for metric in metrics]
        self.labels = (labels,) if isinstance(labels, str) else tuple(labels)
        self._by_label = {label: [pattern.like() for pattern in patterns] for label in self.labels}
        self._faults = {label: Faults(any(pattern.binary for pattern in patterns)) for label in self.labels}
        self.group_columns = tuple(dict.fromkeys(p.column for p in patterns if p.column is not None))
        _check_names(self.labels, [pattern.name for pattern in patterns])

    def like(self) -> MetricSet:
        """The same metrics of the same labels, and nothing counted."""
        return MetricSet(self.labels, next(iter(self._by_label.values())))

    def update(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        groups: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Count rows: scores and labels [B], or [B, k] for k labels; weights [B] or [B, k]; groups [B] by column."""
        with torch.inference_mode(False), torch.no_grad():
            all_scores, all_labels = self._columns("scores", scores), self._columns("labels", labels)
            all_weights = [None] * len(self.labels) if weights is None else self._columns("weights", weights)
            by_column = self._groups(groups or {})
            parts = [_by_group(*part, by_column) for part in zip(all_scores, all_labels, all_weights, strict=True)]
            for label, part in zip(self.labels, parts, strict=True):
                self._faults[label].take(part[None])
            for metrics, part in zip(self._by_label.values(), parts, strict=True):
                for metric in metrics:
                    metric.add(part[metric.column])

    def compute(self) -> dict[str, float]:
        """Every metric of every label."""
        self._check()
        return {key: metric.compute() for key, metric in self._items()}

    def curves(self) -> dict[str, Curve]:
        """The calibration curve of each label, where the metrics have "ece"."""
        self._check()
        found = ((label, m) for label, metrics in self._by_label.items() for m in metrics)
        return {label: metric.curve() for label, metric in found if isinstance(metric, CalibrationCurve)}

    def __getitem__(self, key: str) -> Metric:
        """The metric behind a result, by its name in `compute`."""
        items = dict(self._items())
        if key not in items:
            raise KeyError(f"there is no result {key!r}; there are {', '.join(items)}")
        return items[key]

    def merge(self, other: MetricSet) -> None:
        """Count what `other`, of the same labels and metrics, counted as well."""
        mine, theirs = dict(self._items()), dict(other._items())
        if list(mine) != list(theirs):
            raise ValueError(f"cannot merge metrics {', '.join(theirs)} into {', '.join(mine)}")
        other._check()
        for key, metric in mine.items():
            metric.merge(theirs[key])

    def together(self, ranks: Gathers) -> MetricSet:
        """Metrics of the rows of all ranks, the same on each; all call it. These stay as they are."""
        self._check()
        made = object.__new__(MetricSet)
        made.__dict__.update(self.__dict__)
        made._faults = {label: Faults(faults.binary) for label, faults in self._faults.items()}
        made._by_label = {label: [each.together(ranks) for each in own] for label, own in self._by_label.items()}
        return made

    @torch.inference_mode(False)
    def on_host(self) -> MetricSet:
        """The same on the CPU, once the current stream is done; other threads can use the device meanwhile."""
        parts = {(key, name): part for key, metric in self._items() for name, part in metric._state().items()}
        seen = {("", label): each.seen for label, each in self._faults.items() if each.seen is not None}
        found = brought(parts | seen)
        made = object.__new__(MetricSet)
        made.__dict__.update(self.__dict__)
        made._faults = {label: Faults(faults.binary) for label, faults in self._faults.items()}
        for _, label in seen:
            made._faults[label].seen = found["", label]
        made._check()
        states = {key: {name: part for (of, name), part in found.items() if of == key} for key, _ in self._items()}
        each = (metric.loaded(states[key]) for key, metric in self._items())
        made._by_label = {label: list(islice(each, len(metrics))) for label, metrics in self._by_label.items()}
        return made

    def reset(self) -> None:
        """Forget all rows."""
        for faults in self._faults.values():
            faults.reset()
        for _, metric in self._items():
            metric.reset()

    def state_dict(self) -> dict[str, Tensor]:
        """All that was counted, as "click/auc/totals" and the like; later updates leave it as it is."""
        self._check()
        return {f"{key}/{name}": t for key, metric in self._items() for name, t in metric.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` of the same labels and metrics returned, bit for bit."""
        parts: dict[str, dict[str, Tensor]] = {key: {} for key, _ in self._items()}
        for name, tensor in state.items():
            key, _, leaf = name.rpartition("/")
            if key not in parts:
                raise ValueError(f"the state has {name!r}, but the metrics are {', '.join(parts)}")
            parts[key][leaf] = tensor
        for key, metric in self._items():
            metric.load_state_dict(parts[key])

    def _items(self) -> Iterator[tuple[str, Metric]]:
        for label, metrics in self._by_label.items():
            for metric in metrics:
                yield (metric.name if len(self.labels) == 1 else f"{label}/{metric.name}"), metric

    def _check(self) -> None:
        for faults in self._faults.values():
            faults.check()

    def _columns(self, name: str, tensor: Tensor) -> tuple[Tensor, ...]:
        """One tensor [B] per label."""
        count = len(self.labels)
        if tensor.dim() == 1 and (count == 1 or name == "weights"):
            return (tensor,) * count
        if tensor.dim() == 2 and tensor.shape[1] == count:
            return tuple(tensor.t().contiguous())
        rule = "[B] or [B, 1]" if count == 1 else f"[B, {count}] for {', '.join(self.labels)}"
        raise ValueError(f"{name} must be {rule}, got {list(tensor.shape)}")

    def _groups(self, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
        missing = [column for column in self.group_columns if column not in groups]
        if missing:
            raise ValueError(
                f"no groups for {', '.join(missing)}; update wants groups of {', '.join(self.group_columns)}"
            )
        return {column: groups[column] for column in self.group_columns}


def _by_group(
    scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Mapping[str, Tensor]
) -> dict[str | None, Rows]:
    """The rows without groups, and with those of each column."""
    rows = as_rows(scores, labels, weights, None)
    return {None: rows, **{c: as_rows(rows.scores, rows.labels, rows.weights, g) for c, g in groups.items()}}


def _check_names(labels: tuple[str, ...], names: list[str]) -> None:
    if not labels or not names:
        raise ValueError("a MetricSet needs one label and one metric at least")
    for kind, words in (("label", labels), ("metric", names)):
        twice = sorted({word for word in words if list(words).count(word) > 1})
        if twice:
            raise ValueError(f"{kind} {', '.join(twice)} is there twice; each needs a name of its own")
    if "gauc" in names:
        raise ValueError("gauc needs a group column here; write gauc:COLUMN, as in gauc:user_id")
