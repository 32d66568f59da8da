"""The numbers by which the kernel knows rules, and the places in a parameter's line."""

from __future__ import annotations

from typing import NamedTuple

from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """Rules; then addresses, and how many numbers there are."""

    ADAGRAD: int = 0
    ADAM: int = 1
    ADAMW: int = 2
    SGD: int = 3
    MOMENTUM: int = 4
    NESTEROV: int = 5

    WEIGHT: int = 0
    GRAD: int = 1
    FIRST: int = 2
    SECOND: int = 3
    COUNT: int = 4
    LINE: int = 5


of = constants(Of())

RULES = {"adagrad": 0, "adam": 1, "adamw": 2, "sgd": 3, "momentum": 4, "nesterov": 5}
