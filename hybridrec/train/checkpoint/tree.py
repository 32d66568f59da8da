"""Trees of plain values as JSON, with their tensors beside it: no pickle, and nothing changes on the way.

What JSON has no form for is an object with the key "$": a tensor, an array, a tuple, a dict with other keys than
strings, a float that is not finite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

TAG = "$"


def encode(tree: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The tree as JSON values; its tensors are copied into `tensors`, by their path.

    >>> tensors = {}
    >>> encode({"step": 3, "mean": torch.ones(2), "betas": (0.9, 0.99)}, tensors)
    {'step': 3, 'mean': {'$': 'tensor', 'key': 'mean'}, 'betas': {'$': 'tuple', 'items': [0.9, 0.99]}}
    >>> tensors
    {'mean': tensor([1., 1.])}
    """
    if isinstance(tree, np.generic):
        tree = tree.item()
    if tree is None or isinstance(tree, bool | str):
        return tree
    if isinstance(tree, int | float):
        return _number(tree)
    if isinstance(tree, Tensor | np.ndarray):
        return _leaf(tree, tensors, path)
    if isinstance(tree, Mapping):
        return _mapping(tree, tensors, path)
    if isinstance(tree, list | tuple):
        items = [encode(part, tensors, _under(path, place)) for place, part in enumerate(tree)]
        return items if isinstance(tree, list) else {TAG: "tuple", "items": items}
    raise TypeError(
        f"{path or 'the tree'} is a {type(tree).__name__}, which a checkpoint has no form for; put in tensors, "
        "numbers, strings, booleans, None, and dicts, lists and tuples of them"
    )


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `encode` was given.

    >>> decode({"$": "tuple", "items": [1, {"$": "tensor", "key": "a"}]}, {"a": torch.tensor([2.0])})
    (1, tensor([2.]))
    """
    if isinstance(value, list):
        return [decode(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    match value.get(TAG):
        case None:
            return {name: decode(part, tensors) for name, part in value.items()}
        case "tensor":
            return tensors[value["key"]]
        case "array":
            return tensors[value["key"]].numpy()
        case "float":
            return float(value["value"])
        case "tuple":
            return tuple(decode(part, tensors) for part in value["items"])
        case "dict" | "counter" as kind:
            made = {decode(key, tensors): decode(part, tensors) for key, part in value["items"]}
            return Counter(made) if kind == "counter" else made
        case strange:
            raise ValueError(f"a value is marked {strange!r}, which this version does not know; use a newer one")


def copied(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own on the CPU, one run of numbers."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _number(value: float) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {TAG: "float", "value": repr(float(value))}
    return float(value) if isinstance(value, float) else int(value)


def _leaf(value: Tensor | np.ndarray, tensors: dict[str, Tensor], path: str) -> dict[str, str]:
    if isinstance(value, Tensor) and value.layout != torch.strided:
        raise TypeError(f"{path} is a tensor of layout {value.layout}; make it dense with .to_dense()")
    key, kind = path or "value", "tensor" if isinstance(value, Tensor) else "array"
    while key in tensors:  # a name with "/" in it may look like another's path
        key += "'"
    tensors[key] = copied(torch.as_tensor(value))
    return {TAG: kind, "key": key}


def _mapping(tree: Mapping[Any, Any], tensors: dict[str, Tensor], path: str) -> dict[str, Any]:
    counter = isinstance(tree, Counter)
    if not counter and all(isinstance(key, str) and key != TAG for key in tree):
        return {str(key): encode(part, tensors, _under(path, key)) for key, part in tree.items()}
    items = [
        [encode(key, tensors, _under(path, key)), encode(part, tensors, _under(path, key))]
        for key, part in tree.items()
    ]
    return {TAG: "counter" if counter else "dict", "items": items}


def _under(path: str, name: Any) -> str:
    return f"{path}/{name}" if path else str(name)
