"""Where a run stands, beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class RunState:
    """Counts that a checkpoint keeps. `fit_epoch` and `fit_step` are where the present fit began."""

    step: int = 0
    epoch: int = 0  # epochs done
    epoch_steps: int = 0  # steps done in the present one
    rows: int = 0
    records: int = 0  # lines of metrics.jsonl
    fit_epoch: int = 0
    fit_step: int = 0
    validated: int = -1  # the step of the last validation
    stopped: str | None = None  # why the fit ended before its end
    finished: bool = False  # whether it came to its end

    def begin(self) -> None:
        """Another fit begins here, and with it an epoch."""
        self.epoch += self.epoch_steps > 0
        self.fit_epoch, self.fit_step, self.epoch_steps = self.epoch, self.step, 0
        self.stopped, self.finished = None, False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over the counts of a checkpoint."""
        for name, value in values.items():
            setattr(self, name, value)
