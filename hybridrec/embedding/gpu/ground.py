"""Ground: where the rows of a group's tables lie, and what groups their gradients by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.tiered_store import begins_of


@dataclass(frozen=True, eq=False)
class Ground:
    """Memory that lookups are laid out for. A table that grows gets other memory, and its group another ground.

    What was looked up before holds the one that it was laid out for.
    """

    rows: dict[str, Tensor]  # by table
    bases: dict[str, int]  # where the rows of each table begin among those of all
    bases_there: Tensor
    places: Tensor  # int32 [rows of all tables], zeros: the place of each row while gradients are grouped

    @classmethod
    def of(cls, stores: Mapping[str, Any], device: torch.device) -> Ground:
        """That of the tables as they lie now."""
        rows = {name: store.there for name, store in stores.items()}
        bases, total = begins_of(stores)
        places = memory.allocated(
            lambda: torch.zeros(total, dtype=torch.int32, device=device),
            *("the places of rows", ", ".join(rows), total * memory.PLACE, device, memory.FEWER_ROWS),
        )
        there = torch.tensor(list(bases.values())).to(device, non_blocking=True)
        return cls(rows, bases, there, places)
