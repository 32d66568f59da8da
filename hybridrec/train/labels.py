"""What the labels are called, and what each counts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.models.model import columns_of


def label_names(model: nn.Module, data: Any) -> tuple[str, ...]:
    """The names of the labels: the model's, else those of the data's schema, else "label"."""
    named = getattr(model, "labels", None)
    if isinstance(named, tuple | list) and named:
        return tuple(map(str, named))
    schema = getattr(data, "schema", None)
    return (() if schema is None else columns_of(schema.of("label"))) or ("label",)


def label_weights(given: Mapping[str, float] | None, names: Sequence[str]) -> Tensor | None:
    """The weight of each label's loss, adding up to 1; labels that are not named count 1 before that.

    >>> label_weights({"click": 3.0}, ["click", "like"])
    tensor([0.7500, 0.2500])
    """
    if given is None:
        return None
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"label_weights names {unknown[0]!r}; the labels are {', '.join(names)}")
    weights = torch.tensor([float(given.get(name, 1.0)) for name in names])
    if not weights.sum() > 0:
        raise ValueError(f"label_weights {dict(given)} leave no label with a weight above 0")
    return weights / weights.sum()
