"""Metrics by name."""

from __future__ import annotations

from collections.abc import Callable

from hybridrec.metrics.accuracy import Accuracy
from hybridrec.metrics.auc import AUC
from hybridrec.metrics.auc_pr import AUCPR
from hybridrec.metrics.calibration import Calibration
from hybridrec.metrics.calibration_curve import CalibrationCurve
from hybridrec.metrics.exact_auc import ExactAUC
from hybridrec.metrics.gauc import GAUC
from hybridrec.metrics.log_loss import LogLoss, NormalizedEntropy
from hybridrec.metrics.metric import Metric
from hybridrec.metrics.rmse import RMSE

_MAKERS: dict[str, Callable[[], Metric]] = {
    "auc": AUC,
    "exact_auc": ExactAUC,
    "auc_pr": AUCPR,
    "gauc": GAUC,
    "logloss": LogLoss,
    "ne": NormalizedEntropy,
    "calibration": Calibration,
    "ece": CalibrationCurve,
    "accuracy": Accuracy,
    "rmse": RMSE,
}
NAMES = tuple(_MAKERS)


def make(name: str) -> Metric:
    """A new metric by name; `gauc:COLUMN` has its groups in that column, `accuracy:0.2` another threshold.

    >>> make("auc").name, make("gauc:user_id").column, make("accuracy:0.2").name
    ('auc', 'user_id', 'accuracy:0.2')
    """
    kind, colon, detail = name.partition(":")
    if kind == "gauc" and detail:
        return GAUC(detail)
    if kind == "accuracy" and detail:
        return Accuracy(_number(name, detail))
    if colon or kind not in _MAKERS:
        raise ValueError(f"there is no metric {name!r}; the names are {', '.join(NAMES)}, and gauc:COLUMN")
    return _MAKERS[kind]()


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the threshold of {name!r} is {text!r}: write a number, as in accuracy:0.2") from None
