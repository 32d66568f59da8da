"""When validation stops getting better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hybridrec.train.options import EarlyStopping

HIGHER = ("auc", "exact_auc", "auc_pr", "gauc", "accuracy")


def is_higher_better(metric: str) -> bool:
    """Whether more of a metric is better, by its name.

    >>> is_higher_better("click/gauc:user_id"), is_higher_better("loss")
    (True, False)
    """
    return metric.rpartition("/")[2].partition(":")[0] in HIGHER


class Watch:
    """Follows one metric over validations: the best value so far, and for how long none was better."""

    def __init__(self, metric: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        self.metric, self.min_delta = metric, min_delta
        self.sign = 1.0 if mode == "max" or (mode == "auto" and is_higher_better(metric)) else -1.0
        self.best: float | None = None
        self.since = 0  # validations since the best

    @staticmethod
    def of(options: EarlyStopping) -> Watch:
        """A watch as early stopping wants it."""
        return Watch(options.metric, options.mode, options.min_delta)

    def see(self, metrics: Mapping[str, Any]) -> bool:
        """Take note of a validation; True where it is the best so far."""
        if self.metric not in metrics:
            valid = ", ".join(name for name, value in metrics.items() if isinstance(value, float))
            raise ValueError(f"no metric {self.metric!r} in validation; it has {valid}")
        value = metrics[self.metric]
        better = not math.isnan(value) and (
            self.best is None or self.sign * value > self.sign * self.best + self.min_delta
        )
        self.best, self.since = (value, 0) if better else (self.best, self.since + 1)
        return better

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "best": self.best, "since": self.since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on watching; where another metric was watched before, this one begins anew."""
        if state["metric"] == self.metric:
            self.best, self.since = state["best"], state["since"]
