"""JoinedGroup: tables of several groups whose vectors come to the same memory, looked up and updated together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.columns import side_by_side
from hybridrec.embedding.mixed.group import reader_of
from hybridrec.embedding.mixed.parts import PartedGroup
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.types import IdBlock


class JoinedGroup(PartedGroup):
    """Groups of the host: tables here, tables of all ranks, tables on servers."""

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> JoinedLookup:
        """What looks up these features, and queues their gradients in the groups of their tables."""
        return JoinedLookup(self, features)

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient."""
        return reader_of(self._home[name], name)


class JoinedLookup:
    """Looks up the features of each part, and puts their pooled vectors into the order of the features."""

    def __init__(self, group: JoinedGroup, features: tuple[FeatureSpec, ...]) -> None:
        self.group, self.features, self.remedy = group, features, None
        columns = side_by_side(features, [group.stores[f.table].table.dim for f in features])
        places = [[i for i, f in enumerate(features) if f.table in part.stores] for part in group.parts]
        self._lookups: list[Any] = []
        runs, sequences = [], []
        for part, mine in zip(group.parts, places, strict=True):
            if mine:
                chosen = columns.select(mine)
                runs += [(run.to, len(self._lookups), run.begin, run.width) for run in chosen.runs()]
                unpooled = [i for i in mine if features[i].combiner == "none"]
                sequences += [(i, len(self._lookups), place) for place, i in enumerate(unpooled)]
                self._lookups.append(part.lookup_fn(chosen.features))
        self._runs = [run[1:] for run in sorted(runs)]  # lookup, first column there, columns
        self._sequences = [found[1:] for found in sorted(sequences)]

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        for lookup in self._lookups:
            if getattr(lookup, "early", False):  # it travels while others work here
                lookup.begin(block, train)
        found = [lookup(block, train) for lookup in self._lookups]
        parts = [found[n][0][:, begin : begin + width] for n, begin, width in self._runs]
        flat = torch.cat(parts, 1) if parts else found[0][0]
        return flat, [found[n][1][place] for n, place in self._sequences]

    def begin(self, block: IdBlock, train: bool) -> None:
        """Have vectors come while something else is done: a lookup of this very block must follow."""
        for lookup in self._lookups:
            getattr(lookup, "begin", lambda *_: None)(block, train)

    def prepare(self, block: IdBlock, weight: float | None, train: bool = True) -> None:
        """Send the ids ahead where they travel: a lookup of this very block must follow."""
        for lookup in self._lookups:
            getattr(lookup, "prepare", lambda *_: None)(block, weight, train)

    def forget(self) -> None:
        """What was prepared, and not looked up yet, will not be."""
        for lookup in self._lookups:
            getattr(lookup, "forget", lambda: None)()
