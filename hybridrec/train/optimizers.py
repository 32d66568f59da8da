"""Optimizers as a Trainer takes them: made, to be made, or left to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hybridrec.embedding.owner import groups_of
from hybridrec.optim import RowOptimizer, RowWiseAdagrad

DENSE_LR = 2e-3
ROW_LR = 0.02

DenseChoice = torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None
RowChoice = RowOptimizer | Callable[[nn.Module], RowOptimizer] | None


def dense_optimizer(model: nn.Module, given: DenseChoice) -> torch.optim.Optimizer | None:
    """The optimizer of the layers: as given, `given(parameters)`, or Adam; None for a model without parameters."""
    if isinstance(given, RowOptimizer):
        raise TypeError(f"optimizer is a {type(given).__name__} of rows; give it as row_optimizer=")
    parameters = [part for part in model.parameters() if part.requires_grad]
    if isinstance(given, torch.optim.Optimizer):
        _check_parameters(given, parameters)
        return given
    if not parameters:
        return None
    if given is not None and not callable(given):
        raise TypeError(f"optimizer is {given!r}; it must be, or make, one of torch.optim, such as torch.optim.Adam")
    fused = all(part.device.type == "cpu" for part in parameters)  # on a GPU we have a faster step: DenseUpdate
    made = torch.optim.Adam(parameters, lr=DENSE_LR, fused=fused) if given is None else given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"optimizer gave a {type(made).__name__}; it must be, or make, an optimizer of torch.optim")
    return made


def _check_parameters(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Refuse an optimizer that would train nothing of the model."""
    known = {id(part) for group in optimizer.param_groups for part in group["params"]}
    if parameters and not any(id(part) in known for part in parameters):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__} that has none of the model's parameters, so its layers would "
            "stay as they are; make it of model.parameters()"
        )


def row_optimizer(model: nn.Module, given: RowChoice) -> RowOptimizer | None:
    """The optimizer of the rows: as given, `given(model)`, or RowWiseAdagrad; None for a model without tables."""
    if isinstance(given, RowOptimizer):
        return given
    if isinstance(given, torch.optim.Optimizer):
        raise TypeError(f"row_optimizer is torch's {type(given).__name__}; those of rows are in hybridrec.optim")
    if not any(group.handles for _, group in groups_of(model)):
        return None
    if given is not None and not callable(given):
        raise TypeError(f"row_optimizer is {given!r}; it must be, or make, one of hr.optim, such as hr.optim.Adagrad")
    made = RowWiseAdagrad(model, lr=ROW_LR) if given is None else given(model)
    if not isinstance(made, RowOptimizer):
        raise TypeError(f"row_optimizer gave a {type(made).__name__}; it must be, or make, one of hybridrec.optim")
    return made


def describe(optimizer: torch.optim.Optimizer | None) -> dict[str, Any] | None:
    """An optimizer as JSON values: its kind, and its defaults."""
    if optimizer is None:
        return None
    plain = {
        k: v for k, v in optimizer.defaults.items() if v is None or isinstance(v, bool | int | float | str | tuple)
    }
    return {"kind": type(optimizer).__name__, **plain}
