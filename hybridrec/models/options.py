"""Options as JSON: the policies and types of tables, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from hybridrec.embedding import LFU, LRU, TTL, Constant, MinCount, MultiHash, Normal, Probability, Uniform

VALUES = {made.__name__: made for made in (LFU, LRU, TTL, Constant, MinCount, MultiHash, Normal, Probability, Uniform)}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def encode(value: Any) -> Any:
    """An option as JSON values.

    >>> encode({"user": {"admission": MinCount(2), "dtype": torch.float16}})
    {'user': {'admission': {'kind': 'MinCount', 'k': 2}, 'dtype': 'float16'}}
    """
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if dataclasses.is_dataclass(value) and type(value).__name__ in VALUES:
        return {"kind": type(value).__name__, **vars(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"option {value!r} has no form in JSON; give numbers, strings, lists, or {', '.join(VALUES)}")


def decode(value: Any) -> Any:
    """An option of a table from its JSON; other values stay as they are.

    >>> decode({"kind": "MinCount", "k": 2}), decode("float16"), decode("lfu")
    (MinCount(k=2), torch.float16, 'lfu')
    """
    if isinstance(value, Mapping) and "kind" in value:
        if value["kind"] not in VALUES:
            raise ValueError(f"kind {value['kind']!r} is not one of {', '.join(VALUES)}")
        return VALUES[value["kind"]](**{key: each for key, each in value.items() if key != "kind"})
    return DTYPES.get(value, value) if isinstance(value, str) else value
