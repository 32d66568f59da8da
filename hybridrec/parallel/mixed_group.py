"""MixedShardedGroup: tables on the GPUs of several ranks beside tables in memory of their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.columns import Columns
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.lookup import MixedLookup
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.types import IdBlock


class MixedShardedGroup(MixedGroup):
    """Two groups over ranks. What the host's has to say goes by an exchange of its own: the backward of a GPU runs in
    another thread, and messages of one exchange must be sent in the same order on all ranks."""

    there: Any
    here: Any

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> MixedShardedLookup:
        return MixedShardedLookup(self, features)


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
