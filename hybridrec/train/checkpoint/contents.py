"""Contents: what goes into a checkpoint, and what one is loaded into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Contents:
    """A model, its optimizers by name, and whatever else belongs to the run.

    `state` is a tree of dict, list, tuple, str, int, float, bool, None and tensors: the position in the data, the
    schedulers, the random numbers. `load` fills model and optimizers in place, and sets `state`.

    >>> model = nn.Linear(2, 1)
    >>> contents = Contents(model, {"dense": torch.optim.Adam(model.parameters())}, {"epoch": 3})
    """

    model: nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
