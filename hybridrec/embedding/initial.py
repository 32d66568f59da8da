"""What a row holds before its first update: a pure function of seed, table name, id and column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hybridrec.embedding.parameters import finite, keep
from hybridrec.ops.philox import reference as philox


@dataclass(frozen=True)
class Uniform:
    """Values drawn evenly from [-scale, scale).

    >>> Uniform(0.1)
    Uniform(scale=0.1)
    """

    scale: float = 0.05
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        keep(self, scale=_not_negative(self, "scale", self.scale))

    @property
    def size(self) -> float:
        """The one number that goes with the kind."""
        return self.scale


@dataclass(frozen=True)
class Normal:
    """Values around 0 with standard deviation `std`; none lies further out than 4.9 of them.

    >>> Normal(0.01)
    Normal(std=0.01)
    """

    std: float = 0.01
    kind: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        keep(self, std=_not_negative(self, "std", self.std))

    @property
    def size(self) -> float:
        """The one number that goes with the kind."""
        return self.std


@dataclass(frozen=True)
class Constant:
    """The same value everywhere.

    >>> Constant()
    Constant(value=0.0)
    """

    value: float = 0.0
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        keep(self, value=finite("Constant", "value", self.value))

    @property
    def size(self) -> float:
        """The one number that goes with the kind."""
        return self.value


Initial = Uniform | Normal | Constant


def initial_rows(init: Initial, key: int, ids: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """The rows [n, dim] of these ids before any update; `key` is XXH64 of the table's name with the seed.

    >>> initial_rows(Constant(2), 7, torch.tensor([3, 9]), dim=1, dtype=torch.float32)
    tensor([[2.],
            [2.]])
    """
    if isinstance(init, Constant) or not len(ids):
        return torch.full((len(ids), dim), init.size, dtype=dtype)
    draw = philox.uniform if isinstance(init, Uniform) else philox.normal
    return torch.from_numpy(draw(key, ids.numpy(), dim, init.size)).to(dtype)


def _not_negative(owner: Initial, name: str, value: float) -> float:
    number = finite(type(owner).__name__, name, value)
    if number < 0:
        raise ValueError(f"{type(owner).__name__}: {name} is {number}; it must not be negative")
    return number
