"""Training: a loop to copy, a Trainer that runs it, and what a run leaves behind. Names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrec.train.callbacks import Callback as Callback
    from hybridrec.train.history import History as History
    from hybridrec.train.load import Run as Run
    from hybridrec.train.losses import Loss as Loss
    from hybridrec.train.options import EarlyStopping as EarlyStopping
    from hybridrec.train.options import Schedule as Schedule
    from hybridrec.train.options import TrainOptions as TrainOptions
    from hybridrec.train.seeds import seed_everything as seed_everything
    from hybridrec.train.step import Learner as Learner
    from hybridrec.train.step import StepResult as StepResult
    from hybridrec.train.step import grouped as grouped
    from hybridrec.train.step import train_step as train_step
    from hybridrec.train.tensorboard import TensorBoard as TensorBoard
    from hybridrec.train.trainer import Trainer as Trainer

_HOME = {
    "Trainer": "trainer",
    "TrainOptions": "options",
    "Schedule": "options",
    "EarlyStopping": "options",
    "Callback": "callbacks",
    "TensorBoard": "tensorboard",
    "Loss": "losses",
    "History": "history",
    "Run": "load",
    "seed_everything": "seeds",
    "Learner": "step",
    "StepResult": "step",
    "grouped": "step",
    "train_step": "step",
}
__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"hybridrec.train.{_HOME[name]}"), name)
    raise AttributeError(f"hybridrec.train has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
