"""From records to lines: which metrics there are, of which labels, and their values over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hybridrec.train.report.run import Record
from hybridrec.train.report.thin import Point

LARGEST = 1e100  # what is beyond it has gone astray, and ranges of it overflow
NOT_METRICS = frozenset(
    {"step", "epoch", "time", "samples_per_s", "steps_per_s", "wait_share", "seconds", "rows", "lr", "row_lr"}
)
HIGHER = frozenset({"auc", "exact_auc", "auc_pr", "gauc", "accuracy", "precision", "recall", "ndcg", "hit_rate"})
LOWER = frozenset({"loss", "logloss", "ne", "rmse", "mse", "mae"})
FIRST = ("loss", "auc", "exact_auc", "gauc", "auc_pr", "logloss", "ne", "calibration", "accuracy", "rmse")
TITLES = {
    "loss": "Loss",
    "auc": "AUC",
    "exact_auc": "AUC (exact)",
    "gauc": "GAUC",
    "auc_pr": "AUC-PR",
    "logloss": "Log loss",
    "ne": "Normalised entropy",
    "calibration": "Calibration",
    "accuracy": "Accuracy",
    "rmse": "RMSE",
}


def number(value: Any) -> float | None:
    """The value as a float; None where it is no number. JSON's null is a NaN that was written down.

    >>> number(3), number(True), number("x")
    (3.0, None, None)
    """
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def split_key(key: str) -> tuple[str, str]:
    """A key of a record as (label, metric); the label is empty where there is one alone.

    >>> split_key("auc"), split_key("click/auc"), split_key("loss/click")
    (('', 'auc'), ('click', 'auc'), ('click', 'loss'))
    """
    if key.startswith("loss/"):
        return key.removeprefix("loss/"), "loss"
    label, _, metric = key.rpartition("/")
    return label, metric


def metric_keys(records: Iterable[Record]) -> list[str]:
    """The keys that are metrics, the usual ones first."""
    found: dict[str, None] = {}
    for record in records:
        for key, value in record.items():
            if key not in found and _is_metric(key) and number(value) is not None:
                found[key] = None
    return sorted(found, key=lambda key: _rank(split_key(key)[1]))


def _is_metric(key: str) -> bool:
    return key not in NOT_METRICS and not key.startswith("lr/")


def _rank(metric: str) -> int:
    base = metric.partition(":")[0]
    return FIRST.index(base) if base in FIRST else len(FIRST)


def title(metric: str) -> str:
    """A metric's name for people.

    >>> title("auc"), title("gauc:user_id"), title("my_score")
    ('AUC', 'GAUC by user_id', 'my_score')
    """
    base, _, group = metric.partition(":")
    return TITLES.get(base, base) + (f" by {group}" if group else "")


def points(records: Sequence[Record], key: str) -> list[Point]:
    """(step, value) of every record that has the key; null counts as NaN."""
    made = []
    for record in records:
        if key in record:
            value = math.nan if record[key] is None else number(record[key])
            if value is not None:
                made.append((float(record["step"]), value if not abs(value) >= LARGEST else math.inf))
    return made


def best(values: Sequence[Point], metric: str) -> Point | None:
    """The best point of a metric: the highest AUC, the lowest loss, the calibration nearest to 1.

    >>> best([(1, 0.6), (2, 0.7), (3, 0.65)], "auc"), best([(1, 0.6), (2, 0.7)], "ne"), best([(1, 1.0)], "my_score")
    ((2, 0.7), (1, 0.6), None)
    """
    known = [point for point in values if math.isfinite(point[1])]
    base = metric.partition(":")[0]
    if not known or base not in HIGHER | LOWER | {"calibration"}:
        return None
    cost = {"calibration": lambda v: abs(v - 1)}.get(base, (lambda v: -v) if base in HIGHER else (lambda v: v))
    return min(known, key=lambda point: cost(point[1]))
