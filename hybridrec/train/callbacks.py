"""Your own code during a fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrec.train.step import StepResult
    from hybridrec.train.trainer import Trainer


class Callback:
    """Called at points of a fit; override what you need. Keep `on_step` short: it runs at every step.

    `trainer.stop("reason")` ends the fit after this step. What `state_dict` gives is part of every checkpoint.

    >>> class Show(Callback):
    ...     def on_validate(self, trainer, metrics):
    ...         print(trainer.step, metrics["auc"])
    """

    def on_start(self, trainer: Trainer) -> None:
        """The fit begins, or goes on; a checkpoint is loaded by now."""

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        """Layers and rows were updated."""

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        """A record was written to metrics.jsonl."""

    def on_validate(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """A validation is done."""

    def on_epoch(self, trainer: Trainer) -> None:
        """All data was seen once more."""

    def on_end(self, trainer: Trainer) -> None:
        """The fit is over, whatever ended it."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep in a checkpoint: plain values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""


class Callbacks:
    """Several callbacks as one."""

    def __init__(self, each: Iterable[Callback]) -> None:
        self.each = tuple(each)
        for callback in self.each:
            if not isinstance(callback, Callback):
                raise TypeError(f"{callback!r} is no Callback; derive its class from hybridrec.train.Callback")
        self.at_steps = [each for each in self.each if type(each).on_step is not Callback.on_step]
        self.at_epochs = [each for each in self.each if type(each).on_epoch is not Callback.on_epoch]

    def call(self, event: str, *args: Any) -> None:
        """Call a method of every callback, in order."""
        for callback in self.each:
            getattr(callback, event)(*args)

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        for callback in self.at_steps:
            callback.on_step(trainer, result)

    def state_dict(self) -> list[dict[str, Any]]:
        return [{"kind": type(callback).__name__, "state": callback.state_dict()} for callback in self.each]

    def load_state_dict(self, states: Iterable[Mapping[str, Any]]) -> None:
        """State is given back by kind and order; a callback that is new begins anew."""
        waiting = list(states)
        for callback in self.each:
            kind = type(callback).__name__
            found = next((state for state in waiting if state["kind"] == kind), None)
            if found is not None:
                waiting.remove(found)
                callback.load_state_dict(found["state"])
