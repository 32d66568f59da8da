"""What ranks must have in common to train together, asked before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hybridrec.data.schema import Schema
from hybridrec.parallel.ranks import Ranks

if TYPE_CHECKING:
    from hybridrec.train.fit import Fit

MINIMIZED = ("loss", "metrics", "optimizer", "row_optimizer")


def agree_on_model(model: nn.Module, ranks: Ranks) -> None:
    """ValueError on all ranks where their models differ, before layers are made one."""
    own = model.config() if hasattr(model, "config") else None  # pyright: ignore[reportCallIssue]
    shapes = {name: list(part.shape) for name, part in model.named_parameters()}
    ranks.agree("the model", {"class": type(model).__qualname__, "config": own})
    ranks.agree("the parameters of the model", shapes)


def agree(fit: Fit) -> None:
    """ValueError on all ranks where they differ, with what differs; nothing on one process."""
    if fit.ranks is None:
        return
    for what, value in common(fit).items():
        fit.ranks.agree(what, value)


def common(fit: Fit) -> dict[str, Any]:
    """What is the same on all ranks, as JSON values, by name."""
    config = fit.trainer.config()
    schema = getattr(fit.train, "schema", None)
    return {
        "the schema of the data": schema.to_json() if isinstance(schema, Schema) else None,
        "the loss, the metrics and the optimizers": [config[name] for name in MINIMIZED],
        "the options of the Trainer": config["train"],
        "the epochs and steps of the fit": [fit.epochs, fit.steps],
        "the steps of the whole fit": fit.total(),
        "the state of the run": fit.state.to_json(),
        "the folder of the run": None if fit.trainer.run is None else str(fit.trainer.run.path),
        "whether there is data to validate on": fit.validation.data is not None,
    }
