"""MixedLookup: features of tables on a card and on the host, looked up together.

While the card pools its own features, the host looks up the others, and their vectors are copied into their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from hybridrec.embedding.columns import Columns, side_by_side
from hybridrec.embedding.mixed.host import HostGroup
from hybridrec.embedding.mixed.roads import Fetched, Roads
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.embedding.mixed.group import MixedGroup


class MixedLookup:
    """Looks up features of a mixed group's tables: a block to the pooled features side by side, and the sequences."""

    def __init__(self, group: MixedGroup, features: tuple[FeatureSpec, ...]) -> None:
        self.group, self.features = group, features
        self.device, self.roads = group.device, Roads(group.device)
        columns = side_by_side(features, [group.stores[f.table].table.dim for f in features])
        here = [i for i, f in enumerate(features) if f.table in group.here.stores]
        there = [i for i in range(len(features)) if i not in here]
        self._width, self.runs = columns.width, columns.select(here).runs()
        self._here: Any = group.here.lookup_fn(tuple(features[i] for i in here))
        self._there = self._of_card(columns.select(there)) if group.there is not None and there else None
        self._sequences = _merged(features, there, here)
        self._names = tuple(features[i].name for i in here)
        self._sends = getattr(group.here, "prepares", False)
        self._fetched: Any = WeakTensorKeyDictionary()  # by the ids of a block, which may go without a lookup

    def __reduce__(self) -> tuple:
        return MixedLookup, (self.group, self.features)

    @_disable_dynamo  # copies and events are no part of a graph
    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        self._refuse_capture()
        fetched = self._fetch(block)
        flat, theirs = self._on_card(block, train)
        pooled, ours = self._here(self._on_host(fetched, block), train)
        weighed = torch.is_grad_enabled() and block.weights is not None and block.weights.requires_grad
        if weighed:
            flat = flat.clone()  # the gradient of weights wants the output as it is
        flat, *ours = _Joined.apply(flat, self, weighed, pooled, *ours)  # pyright: ignore[reportGeneralTypeIssues]
        return flat, [(theirs, ours)[home][place] for home, place in self._sequences]

    def fetch(self, block: IdBlock) -> None:
        """Have ids come to the host ahead of their lookup, when the current stream has brought the block."""
        if self.device.type == "cuda":
            self._fetched[block.values] = self.roads.fetch(block, self._names)

    def layout(self, block: IdBlock) -> Any:
        """Refused: it is for captures."""
        raise RuntimeError(_NO_GRAPH)

    def _refuse_capture(self) -> None:
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(_NO_GRAPH)

    def prepare(self, block: IdBlock, weight: float | None, train: bool = True) -> None:
        """Send the ids ahead to where they travel: a lookup of this very block must follow."""
        if getattr(self.group.there, "prepares", False) and self._there is not None:
            self._there.prepare(block, weight, train)
        if self._sends:
            fetched = self.roads.fetch(block, self._names)
            if self.device.type == "cuda":
                self._fetched[block.values] = fetched
            self._here.prepare(fetched.arrived(), weight, train)

    def forget(self) -> None:
        """What was prepared, and not looked up yet, will not be."""
        self._fetched.clear()
        for lookup in (self._there, self._here):
            getattr(lookup, "forget", lambda: None)()

    def _fetch(self, block: IdBlock) -> Fetched:
        found = self._fetched.pop(block.values, None)
        if found is not None and (self._sends or found.is_of(block)):  # ids that were sent stay what they were
            return found
        return self.roads.fetch(block, self._names)

    def _on_host(self, fetched: Fetched, block: IdBlock) -> IdBlock:
        """The block of features on the host; weights that may get a gradient stay part of the graph."""
        here = fetched.arrived()
        if here is block or block.weights is None or not block.weights.requires_grad:
            return here
        return replace(here, weights=block.select(self._names).weights.cpu())  # pyright: ignore

    def _of_card(self, columns: Columns) -> Any:
        """What looks up the features of tables on the card."""
        assert self.group.there is not None, "there is a card"
        return self.group.there.lookup_fn(columns.features, columns=columns)

    def _on_card(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        """The output of all features, as yet with those of the card alone, and their sequences."""
        if self._there is None:
            return torch.empty(block.batch_size, self._width, device=self.device), ()
        return self._there(block, train)

    def arriving(self, arrived: Any) -> None:
        """Gradients are about to be queued that are on the host when this event has come."""
        if isinstance(self.group.here, HostGroup):
            self.group.here.expect(arrived)
        else:
            arrived.synchronize()  # gradients are summed at once


_NO_GRAPH = (
    "a lookup of tables on the host cannot be part of a CUDA graph: the host has to find the rows of each batch; leave "
    "where='host' out, or run the step without a graph"
)


def _merged(features: Sequence[FeatureSpec], there: list[int], here: list[int]) -> list[tuple[int, int]]:
    """For each sequence as declared: whether it is one of the card (0) or of the host (1), and the how manieth."""
    of_each = [[i for i in part if features[i].combiner == "none"] for part in (there, here)]
    found = {i: (home, place) for home, part in enumerate(of_each) for place, i in enumerate(part)}
    return [found[i] for i in sorted(found)]


class _Joined(torch.autograd.Function):
    """Vectors of the host written into their columns of the output on the card; their gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, lookup: MixedLookup, wait: bool, *vectors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # an output without a gradient touches no row
        ctx.mark_dirty(flat)
        ctx.lookup, ctx.wait = lookup, wait
        pooled, *sequences = lookup.roads.up(vectors)
        for run in lookup.runs:
            flat[:, run.to : run.to + run.width] = pooled[:, run.begin : run.begin + run.width]
        return (flat, *sequences)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flat, *sequences = grads
        lookup: MixedLookup = ctx.lookup
        mine = None if flat is None else _columns(flat, lookup)
        found, arrived = lookup.roads.down([mine, *sequences])
        if arrived is not None and (ctx.wait or torch.is_anomaly_enabled()):
            arrived.synchronize()  # the gradient of weights is computed at once
        elif arrived is not None:
            lookup.arriving(arrived)
        return (flat, None, None, *found)


def _columns(flat: Tensor, lookup: MixedLookup) -> Tensor:
    """The columns of the host side by side."""
    parts = [flat[:, run.to : run.to + run.width] for run in lookup.runs]
    return torch.cat(parts, dim=1) if parts else flat[:, :0]
