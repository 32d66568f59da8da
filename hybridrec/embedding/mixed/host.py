"""HostGroup: tables in memory of the host whose vectors go to a card, and whose gradients come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.queue import FeatureSpec, QueuedCall
from hybridrec.ops.pooled_lookup.op import Lookup


class HostGroup(TableGroup):
    """Tables beside those of a card, `device`.

    Gradients are queued while they still travel; whoever wants to read them waits until they are here.
    """

    def __init__(self, stores: Mapping[str, Any], trainable: set[str], device: torch.device) -> None:
        super().__init__(stores, trainable)
        self.device = device
        self._arriving: list[Any] = []  # events

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Lookup:
        kind = PinnedLookup if self.device.type == "cuda" else Lookup
        return kind(self, features, remedy)

    def __reduce__(self) -> tuple:
        return HostGroup, (self.stores, set(self.handles), self.device)

    def expect(self, arrived: Any) -> None:
        """Gradients that are about to be queued are there when this event has come."""
        with self._lock:
            self._arriving.append(arrived)

    def _calls(self, tables: set[str]) -> list[QueuedCall]:
        calls = super()._calls(tables)
        with self._lock:
            arriving, self._arriving = self._arriving, []
        for event in arriving:
            event.synchronize()
        return calls


class PinnedLookup(Lookup):
    """A lookup whose vectors can be copied to a card while the host goes on."""

    def recycled(self, dtype: torch.dtype, *shape: int) -> Tensor:
        if dtype != torch.float32:  # slots, and the winners of max: they stay here
            return super().recycled(dtype, *shape)
        return torch.empty(shape, dtype=dtype, pin_memory=True)  # which torch takes back when it has been read
