"""Metric: what every metric can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from hybridrec.metrics.faults import Faults
from hybridrec.metrics.rows import Rows, as_rows


class Gathers(Protocol):
    """Ranks that count rows of one data set, each its own; see `hybridrec.parallel.ranks.Ranks`."""

    def sum(self, values: Tensor) -> Tensor: ...
    def gathered(self, values: Tensor) -> list[Tensor]: ...


class Metric(ABC):
    """A number over all rows of all updates so far; `nan` where it is not defined.

    Subclasses count checked rows in `add`. Their state is tensors, on the device of the rows until `compute`.
    `column` names the group column that a metric needs, if any; `binary` metrics take scores in [0, 1] and labels
    0 or 1, the others any finite numbers.
    """

    name: str
    binary: ClassVar[bool] = True
    column: str | None = None

    def __init__(self) -> None:
        self._faults = Faults(self.binary)

    def update(
        self, scores: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> None:
        """Count rows: scores [n], labels [n], and where given their weights [n] and integer groups [n].

        A value out of range is an error and nothing is counted; on a GPU, which update does not wait for, the
        error comes from the next compute, merge or state_dict.
        """
        with torch.inference_mode(False), torch.no_grad():
            rows = as_rows(scores, labels, weights, groups)
            self._faults.take(rows)
            self.add(rows)

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Count rows that were checked."""

    @abstractmethod
    def value(self) -> float:
        """The number, of rows known to be sound."""

    def compute(self) -> float:
        """The number over all rows so far, or nan where it is not defined."""
        self._faults.check()
        return self.value()

    @torch.inference_mode(False)
    def merge(self, other: Self) -> None:
        """Count what `other` counted as well; the order of merges and updates makes no difference."""
        if (type(self), self.name) != (type(other), other.name):
            raise ValueError(f"cannot merge {other.name} into {self.name}: both must be the same metric")
        other._faults.check()
        self._merge(other)

    @abstractmethod
    def _merge(self, other: Self) -> None: ...

    def together(self, ranks: Gathers) -> Self:
        """A metric of the rows of all ranks, the same on each; all call it, in the same order. This one stays."""
        made = self.like()
        empty = made.like()
        state = {name: part.cpu() for name, part in self.state_dict().items()}
        gathered = {name: ranks.gathered(state[name]) for name in sorted(state)}
        for parts in zip(*gathered.values(), strict=True):
            other = empty.like()
            other.load_state_dict(dict(zip(gathered, parts, strict=True)))
            made.merge(other)
        return made

    def like(self) -> Self:
        """A metric with the same options, and nothing counted."""
        made = deepcopy(self)
        made.reset()
        return made

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Forget all rows."""
        self._faults.reset()
        self._clear()

    @abstractmethod
    def _clear(self) -> None: ...

    def state_dict(self) -> dict[str, Tensor]:
        """All that was counted; later updates leave it as it is."""
        self._faults.check()
        return self._state()

    @abstractmethod
    def _state(self) -> dict[str, Tensor]: ...

    @torch.inference_mode(False)
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned, bit for bit."""
        wanted, own = sorted(state), sorted(self._state())
        if wanted != own:
            raise ValueError(f"the state of {self.name} has {', '.join(own)}, got {', '.join(wanted) or 'nothing'}")
        self._faults.reset()
        self._load(state)

    def loaded(self, state: Mapping[str, Tensor]) -> Self:
        """A metric with the same options that has counted what a state says, which is known to be sound."""
        made = copy(self)
        made._faults = Faults(self.binary)
        made._load(state)
        return made

    @abstractmethod
    def _load(self, state: Mapping[str, Tensor]) -> None: ...
