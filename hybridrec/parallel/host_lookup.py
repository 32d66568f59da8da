"""HostLookup: what lookups have in common whose vectors come into memory of the host, from ranks or from servers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.parallel.pooled_answers import PooledAnswers
from hybridrec.parallel.rank_lookup import RankLookup
from hybridrec.parallel.request import Ids
from hybridrec.types import IdBlock


class HostLookup(RankLookup):
    """A lookup whose vectors one native call pools."""

    def __init__(self, group: Any, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> None:
        super().__init__(group, features, remedy)
        self.anchor = torch.zeros((), requires_grad=self.trained)
        self._arena = _native.Arena.create()

    def pooled(self, anchor: Tensor, weights: Tensor | None, flight: Any, mode: int) -> Sequence[Tensor]:
        return PooledAnswers.apply(anchor, weights, self, flight, mode)  # pyright: ignore[reportReturnType]

    def one(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, hotness: int, batch_size: int, train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same for the only feature; hotness is -1 where there are offsets."""
        ids = Ids(values, offsets.view(1, -1), weights, (0, len(values)), (hotness,), (0,), batch_size)
        return self._run(self.now(ids, ids.batch), weights, train)

    def ids_of(self, block: IdBlock) -> Ids:
        hotness = tuple(-1 if hot is None else hot for hot in block.hotness)
        weights = None if block.weights is None else block.weights.contiguous()
        starts = tuple(block.starts)
        return Ids(block.values, block.offsets, weights, starts, hotness, self.pick(block), block.batch_size)

    @abstractmethod
    def runs(self, flight: Any, mode: int) -> list[Tensor]:
        """What was answered, float32: one run of vectors for each width."""

    @abstractmethod
    def send_gradients(self, flight: Any, sums: list[Tensor], tables: set[str], marked: bool) -> None:
        """Gradients by width, laid out as the vectors were, of these tables; whether some rows are marked (`unfed`)."""

    def recycled(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """A tensor in memory that comes back when it goes: touching fresh memory costs more than filling it."""
        if prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        memory = self._arena.take(4 * prod(shape)).view(np.float32 if dtype == torch.float32 else np.int32)
        return torch.from_numpy(memory.reshape(shape))

    def by_width(self, flight: Any, vectors: Tensor) -> list[Tensor]:
        """Vectors as they came, as one run for each width: a copy, unless there is one width only."""
        routes, request = flight.way.routes, flight.request
        if len(routes.widths) == 1:
            return [vectors]
        runs: list[list[Tensor]] = [[] for _ in routes.widths]
        at = 0
        for rows in request.segments.reshape(-1, len(routes.widths)).tolist():
            for place, (count, width) in enumerate(zip(rows, routes.widths, strict=True)):
                if count:
                    runs[place].append(vectors[at : at + count * width])
                at += count * width
        return [torch.cat(run) if run else vectors[:0] for run in runs]
