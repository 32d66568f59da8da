"""Ground: where the rows of a group's tables begin among all of them, and what groups their gradients by row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.tiered_store import begins_of
from hybridrec.ops.reserved import Column


class Ground:
    """A place for each row, int32 zeros, which is its own while gradients are grouped.

    That of row r of a table is at `places[bases[table] + r]`. Dynamic tables have columns of their own, which grow:
    their bases lead there, outside of the tensor.
    """

    places: Tensor  # int32, of all other tables
    bases: dict[str, int]  # where the places of each table begin

    def __init__(self, stores: Mapping[str, Any], device: torch.device) -> None:
        self._device = device
        growing = {name: store for name, store in stores.items() if isinstance(store, DeviceHashStore)}
        self.bases, total = begins_of({name: store for name, store in stores.items() if name not in growing})
        self.places = memory.allocated(
            lambda: torch.zeros(max(total, 1), dtype=torch.int32, device=device),
            *("the places of rows", ", ".join(stores), total * memory.PLACE, device, memory.FEWER_ROWS),
        )
        self.growing = {store: Column(store.reach, (), torch.int32, device) for store in growing.values()}
        self.grow()
        for name, store in growing.items():
            self.bases[name] = (self.growing[store].address - self.places.data_ptr()) // memory.PLACE
        self.bases_there = torch.tensor([self.bases[name] for name in stores]).to(device, non_blocking=True)

    def zeros(self) -> list[Tensor]:
        """All places: grouping finds zeros there, and leaves them behind."""
        return [self.places, *(column.tensor for column in self.growing.values())]

    def grow(self) -> None:
        """Have places for all rows that dynamic tables have memory for."""
        for store, column in self.growing.items():
            slots, was = store.slots.slots, column.count
            if slots > was:
                size = slots * memory.PLACE
                told = "the places of rows", store.table.name, size, self._device, memory.FEWER_SLOTS
                memory.allocated(partial(column.grow, slots), *told)
                column.tensor[was:] = 0
