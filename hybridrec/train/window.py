"""What happened since the last record of training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch

from hybridrec.metrics import MetricSet
from hybridrec.parallel.ranks import Ranks
from hybridrec.train.evaluation import Measured, measured, take
from hybridrec.train.late_loss import AHEAD
from hybridrec.train.losses import Loss
from hybridrec.train.stages import wait_share
from hybridrec.train.step import Learner, StepResult

TOGETHER = 32768  # rows that are taken into the metrics at once; a batch waits no longer than that
TOGETHER_ON_A_DEVICE = 1 << 20  # where metrics cost launches, however few the rows


Late = tuple[SupportsFloat, float]  # a loss that a device may still be computing, and its weight


@dataclass(frozen=True)
class Closed:
    """A window that has ended: what is known of it, and what a device may still be computing."""

    metrics: MetricSet | None
    late: Sequence[Late]  # the last losses, not among the losses yet
    losses: float
    weight: float
    steps: int
    rows: int
    seconds: float
    stages: dict[str, float]
    counted: Any = None  # the event after which the metrics are complete


class Window:
    """Sums up steps between two records: loss, metrics of the predictions made before each update, speed."""

    def __init__(self, learner: Learner, metrics: MetricSet | None) -> None:
        self._loss: Loss = learner.loss
        self._stages, self._metrics, self._ranks = learner.stages, metrics, learner.ranks
        self._spare: MetricSet | None = None  # of the window before
        self._on_device = learner.device is not None
        self._side: torch.cuda.Stream | None = None  # on which metrics are read, before all else of the next step
        if learner.device is not None and learner.device.type == "cuda":
            self._side = torch.cuda.Stream(learner.device, priority=-1)
        self.steps = self.rows = 0
        self._losses = self._weight = 0.0
        self._late: list[Late] = []  # the last losses, not among them yet
        self._waiting: list[Measured] = []  # not yet in the metrics
        self._waiting_rows = 0
        self._since, self._untimed = time.perf_counter(), (0, 0)  # steps and rows from before a resume

    def add(self, result: StepResult) -> None:
        """A step is done."""
        self._stages.enter("metrics")
        self.steps, self.rows = self.steps + 1, self.rows + result.rows
        self._late.append((result.found, result.weight))  # not the batches, whose memory the loader wants back
        self._count_losses(AHEAD)
        parts = zip(result.outputs, result.batches, strict=True)
        found = (measured(self._metrics, self._loss, *part) for part in parts)
        kept = [part for part in found if part is not None]
        self._waiting += [part.apart() for part in kept] if self._on_device else kept
        self._waiting_rows += result.rows
        if self._waiting_rows >= (TOGETHER_ON_A_DEVICE if self._on_device else TOGETHER):
            self._measure()
        self._stages.enter("other")

    def _count_losses(self, but: int = 0) -> None:
        """Add all losses but the last ones, for which nobody waits."""
        known = max(0, len(self._late) - but)
        self._losses, self._weight = _plus(self._losses, self._weight, self._late[:known])
        del self._late[:known]

    def _measure(self) -> None:
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if self._metrics is not None:
            take(self._metrics, waiting)

    def take(self) -> dict[str, Any]:
        """The figures of this window, of all ranks together; the next begins."""
        closed = self.close()
        self._stages.enter("metrics")
        found = self.figures(closed)
        self._stages.enter("other")
        return found

    def close(self) -> Closed:
        """End this window, waiting for no device; the next begins."""
        self._stages.enter("metrics")
        self._measure()
        self._stages.enter("other")
        seconds, stages = time.perf_counter() - self._since, self._stages.take()
        steps, rows = self.steps - self._untimed[0], self.rows - self._untimed[1]
        counted = None if self._side is None else torch.cuda.current_stream(self._side.device).record_event()
        known = self._losses, self._weight, steps, rows, seconds, stages, counted
        closed = Closed(self._metrics, tuple(self._late), *known)
        if self._metrics is not None:
            self._metrics, self._spare = self._spare or self._metrics.like(), None
        self.clear()
        return closed

    def figures(self, window: Closed) -> dict[str, Any]:
        """The figures of a window that has ended, of all ranks together; a device is waited for, up to its end.

        Another thread may ask for them, while steps are added to the next window.
        """
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            if self._side is not None:
                self._side.wait_event(window.counted)
            kept = window.metrics
            metrics = self._everyones(kept if kept is None or self._side is None else kept.on_host())
            found = {} if metrics is None else metrics.compute()
        self._spare = window.metrics
        losses, weight = _plus(window.losses, window.weight, window.late)
        rows, seconds, stages = window.rows, window.seconds, window.stages
        if self._ranks is not None:
            losses, weight, rows, seconds, stages = _summed(self._ranks, losses, weight, rows, seconds, stages)
        return {
            "loss": losses / weight if weight else float("nan"),
            **found,
            "samples_per_s": rows / seconds,
            "steps_per_s": window.steps / seconds,
            "wait_share": wait_share(stages),
            "stages": {name: spent / max(window.steps, 1) for name, spent in stages.items()},
        }

    def _everyones(self, metrics: MetricSet | None) -> MetricSet | None:
        return metrics if metrics is None or self._ranks is None else metrics.together(self._ranks)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it no time counts."""
        self._stages.enter("other")
        began = time.perf_counter()
        try:
            yield
        finally:
            self._since += time.perf_counter() - began
            self._stages.skip()

    def clear(self) -> None:
        """Begin anew."""
        self._waiting, self._waiting_rows, self._late = [], 0, []
        self.steps = self.rows = 0
        self._losses = self._weight = 0.0
        self._since, self._untimed = time.perf_counter(), (0, 0)
        self._stages.take()
        if self._metrics is not None:
            self._metrics.reset()

    def state_dict(self) -> dict[str, Any]:
        """What to go on from; of many ranks, all together."""
        self._count_losses()
        if self._ranks is not None:
            return self._state_of_all(self._ranks)
        metrics = None if self._metrics is None else self._metrics.state_dict()
        return {
            "steps": self.steps,
            "rows": self.rows,
            "losses": self._losses,
            "weight": self._weight,
            "metrics": metrics,
            "waiting": [part._asdict() for part in self._waiting],  # so that saving changes no sum
        }

    def _state_of_all(self, ranks: Ranks) -> dict[str, Any]:
        self._measure()
        metrics = self._everyones(self._metrics)
        sums = torch.tensor([self.rows, self._losses, self._weight], dtype=torch.float64)
        rows, losses, weight = ranks.sum(sums).tolist()
        state = None if metrics is None else metrics.state_dict()
        told = {"rows": int(rows), "losses": losses, "weight": weight}
        return {"steps": self.steps, **told, "metrics": state, "waiting": []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a window that was saved half-way; its time counts from now. Of many ranks, rank 0 has it all."""
        self.clear()
        self.steps, self.rows = self._untimed = state["steps"], state["rows"]
        if self._ranks is not None and self._ranks.rank:
            self.rows, self._untimed = 0, (self.steps, 0)
            return
        self._losses, self._weight = state["losses"], state["weight"]
        if self._metrics is not None and state["metrics"] is not None:
            self._metrics.load_state_dict(state["metrics"])
        self._waiting = [Measured(**part) for part in state.get("waiting", ())]
        self._waiting_rows = sum(len(part.scores) for part in self._waiting)


def _plus(losses: float, weight: float, late: Sequence[Late]) -> tuple[float, float]:
    """The losses and their weight with some more; they are waited for."""
    for loss, of_weight in late:
        losses, weight = losses + float(loss) * of_weight, weight + of_weight
    return losses, weight


def _summed(
    ranks: Ranks, losses: float, weight: float, rows: int, seconds: float, stages: dict[str, float]
) -> tuple[float, float, int, float, dict[str, float]]:
    """Losses, weights and rows of all ranks, and their mean times."""
    mine = [losses, weight, rows, seconds, *stages.values()]
    losses, weight, all_rows, seconds, *times = ranks.sum(torch.tensor(mine, dtype=torch.float64)).tolist()
    means = {name: spent / ranks.world for name, spent in zip(stages, times, strict=True)}
    return losses, weight, int(all_rows), seconds / ranks.world, means
