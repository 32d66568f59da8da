"""MixedShardedGroup: tables on the GPUs of several ranks beside tables in memory of their hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.columns import Columns
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.lookup import MixedLookup
from hybridrec.embedding.mixed.roads import Fetched
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.types import IdBlock


class MixedShardedGroup(MixedGroup):
    """Two groups over ranks. What the host's has to say goes by an exchange of its own: the backward of a GPU runs in
    another thread, and messages of one exchange must be sent in the same order on all ranks."""

    there: Any
    here: Any

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> MixedShardedLookup:
        return MixedShardedLookup(self, features)

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient, on the GPU; every rank asks, each for its own ids."""
        if name not in self.here.stores:
            return self.there.reader(name)
        read = self.here.reader(name)
        return lambda ids: read(ids.cpu()).to(self.device)


class MixedShardedLookup(MixedLookup):
    """Looks up features of both groups; every rank calls it, with its own block."""

    def _of_card(self, columns: Columns) -> Any:
        self._runs_there = columns.runs()
        return self.group.there.lookup_fn(columns.features)  # pyright: ignore[reportOptionalMemberAccess]

    def _on_card(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        flat, sequences = super()._on_card(block, train)
        return (flat if self._there is None else self._spread(flat)), sequences

    def _spread(self, flat: Tensor) -> Tensor:
        """The columns of the GPU where they belong, with room between them."""
        parts, end = [], 0
        for run, part in zip(self._runs_there, flat.split([run.width for run in self._runs_there], 1), strict=True):
            parts += [flat.new_empty(len(flat), run.to - end), part]
            end = run.to + run.width
        return torch.cat([*parts, flat.new_empty(len(flat), self._width - end)], 1)

    def prepare(self, block: IdBlock, weight: float | None) -> None:
        """Send the ids ahead, to GPUs and hosts: a lookup of this very block must follow, as on all other ranks."""
        if self._there is not None:
            self._there.prepare(block, weight)
        fetched = self.roads.fetch(block, self._names)
        if self.device.type == "cuda":
            self._fetched[block.values] = fetched
        self._here.prepare(fetched.arrived(), weight)  # pyright: ignore[reportAttributeAccessIssue]

    def forget(self) -> None:
        """What was prepared, and not looked up yet, will not be."""
        self._fetched.clear()
        for lookup in (self._there, self._here):
            if lookup is not None:
                lookup.forget()  # pyright: ignore[reportAttributeAccessIssue]

    def _fetch(self, block: IdBlock) -> Fetched:
        found = self._fetched.pop(block.values, None)  # whose ids are on their way
        return self.roads.fetch(block, self._names) if found is None else found

    def arriving(self, arrived: Any) -> None:
        arrived.synchronize()  # gradients are summed and sent at once
