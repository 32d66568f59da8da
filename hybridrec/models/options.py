"""Options as JSON: the policies and types of tables, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hybridrec.embedding import LFU, LRU, TTL, Constant, MinCount, MultiHash, Normal, Probability, Uniform
from hybridrec.embedding.table import COLD

VALUES = {made.__name__: made for made in (LFU, LRU, TTL, Constant, MinCount, MultiHash, Normal, Probability, Uniform)}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in COLD}  # of tables, and of their cold rows


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


def check_option(name: str, annotation: str, value: Any) -> None:
    """Refuse a value of another kind than the annotation of a model's argument says; others are the model's to check.

    >>> check_option("hidden", "Sequence[int]", "abc")
    Traceback (most recent call last):
    ValueError: model.hidden is 'abc'; it must be a list of whole numbers from 1 on, such as model.hidden=[64,32]
    """
    rule = RULES.get(annotation)
    if rule is not None and not rule.fits(value):
        raise ValueError(f"model.{name} is {value!r}; it must be {rule.words}, such as model.{name}={rule.example}")


@dataclasses.dataclass(frozen=True)
class Rule:
    """What values an annotation stands for, in code and in words."""

    fits: Callable[[Any], bool]
    words: str
    example: str


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


RULES = {
    "int": Rule(_is_count, "a whole number from 1 on", "16"),
    "int | None": Rule(lambda value: value is None or _is_count(value), "a whole number from 1 on, or none", "16"),
    "float": Rule(_is_number, "a number from 0 on", "0.1"),
    "bool": Rule(lambda value: isinstance(value, bool), "true or false", "true"),
    "Sequence[int]": Rule(
        lambda value: isinstance(value, list | tuple) and all(map(_is_count, value)),
        "a list of whole numbers from 1 on",
        "[64,32]",
    ),
    "Sequence[str]": Rule(
        lambda value: isinstance(value, list | tuple) and all(isinstance(each, str) for each in value),
        "a list of names",
        '["item","tags"]',
    ),
    "Mapping[str, str]": Rule(
        lambda value: isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()),
        "a table of names",
        '{seen="item"}',
    ),
}
