"""How a row is updated, as plain values: what a row optimizer tells the code that holds the rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

Kind = Literal["sgd", "momentum", "nesterov", "adagrad", "rowwise_adagrad", "adam", "ftrl"]
NanPolicy = Literal["skip", "raise"]


@dataclass(frozen=True, slots=True)
class StateColumn:
    """Optimizer state beside each row: one float per element, or one per row; new rows get `fill`."""

    name: str
    per_row: bool = False
    fill: float = 0.0

    def width(self, dim: int) -> int:
        """Floats beside a row of this dimension."""
        return 1 if self.per_row else dim


@dataclass(frozen=True, slots=True)
class RowRule:
    """The formula of an update and the state it keeps, in the order in which the formula takes it.

    >>> RowRule("adagrad", (StateColumn("sum", fill=0.1),)).names
    ('sum',)
    """

    kind: Kind
    state: tuple[StateColumn, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the state columns."""
        return tuple(column.name for column in self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStep:
    """One step of one table, its numbers final: schedules and bias corrections are already in `lr`.

    A formula reads the numbers that it knows and ignores the others. `step` is 1 for the first step of the table
    and keys stochastic rounding; `grad_scale` multiplies the summed gradients before anything else.

    >>> RowStep(rule=RowRule("sgd"), lr=0.1, step=1).grad_scale
    1.0
    """

    rule: RowRule
    lr: float
    step: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    eps: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0
    weight_bound: float = inf
    clip_row_norm: float = inf
    grad_scale: float = 1.0
    nan: NanPolicy = "skip"
