"""Metrics: scores and labels in, numbers out; streaming, weighted, mergeable."""

from __future__ import annotations

from hybridrec.metrics.accuracy import Accuracy
from hybridrec.metrics.auc import AUC
from hybridrec.metrics.auc_pr import AUCPR
from hybridrec.metrics.calibration import Calibration
from hybridrec.metrics.calibration_curve import CalibrationCurve, Curve
from hybridrec.metrics.exact_auc import ExactAUC, exact_auc
from hybridrec.metrics.gauc import GAUC, GroupSummary
from hybridrec.metrics.log_loss import LogLoss, NormalizedEntropy
from hybridrec.metrics.metric import Metric
from hybridrec.metrics.metric_set import MetricSet
from hybridrec.metrics.names import NAMES, make
from hybridrec.metrics.rmse import RMSE

__all__ = [
    "Metric",
    "MetricSet",
    "make",
    "NAMES",
    "AUC",
    "ExactAUC",
    "exact_auc",
    "AUCPR",
    "LogLoss",
    "NormalizedEntropy",
    "Calibration",
    "CalibrationCurve",
    "Curve",
    "Accuracy",
    "GAUC",
    "GroupSummary",
    "RMSE",
]
