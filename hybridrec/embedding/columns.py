"""Columns: where features have their numbers in a pooled output that several lookups may fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybridrec.embedding.queue import FeatureSpec


class Run(NamedTuple):
    """Columns that are neighbours in two outputs."""

    begin: int  # in the output of some features
    to: int  # in the output of all
    width: int


@dataclass(frozen=True)
class Columns:
    """The first column of each feature, and the width of the output; features that are not pooled have no columns."""

    features: tuple[FeatureSpec, ...]
    dims: tuple[int, ...]
    begins: tuple[int, ...]
    width: int

    def select(self, places: Sequence[int]) -> Columns:
        """Those of some of the features, in the same output."""
        parts = (self.features, self.dims, self.begins)
        return Columns(*(tuple(part[i] for i in places) for part in parts), self.width)  # pyright: ignore

    def runs(self) -> list[Run]:
        """The same columns in an output of these features alone, and in this one: as few runs as there can be.

        >>> features = tuple(FeatureSpec(name, name, "sum") for name in "abc")
        >>> side_by_side(features, (2, 3, 4)).select([0, 2]).runs()
        [Run(begin=0, to=0, width=2), Run(begin=2, to=5, width=4)]
        """
        alone = side_by_side(self.features, self.dims).begins
        parts = zip(self.features, map(Run, alone, self.begins, self.dims), strict=True)
        joined: list[Run] = []
        for run in (run for feature, run in parts if feature.combiner != "none"):
            last = joined[-1] if joined else None
            if last is not None and run.to == last.to + last.width:
                joined[-1] = last._replace(width=last.width + run.width)
            else:
                joined.append(run)
        return joined


def side_by_side(features: Sequence[FeatureSpec], dims: Sequence[int]) -> Columns:
    """Pooled features one after the other, as declared.

    >>> side_by_side([FeatureSpec("a", "a", "sum"), FeatureSpec("b", "b", "mean")], [4, 2]).begins
    (0, 4)
    """
    begins, width = [], 0
    for feature, dim in zip(features, dims, strict=True):
        begins.append(width)
        width += 0 if feature.combiner == "none" else dim
    return Columns(tuple(features), tuple(dims), tuple(begins), width)
