"""FixedSlots: memory that stays, from which CUDA graphs of lookups read slots in place of ids.

Which rows are on the device, and where, is decided before a replay, by launches that differ from batch to batch. The
graph finds what came of it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybridrec.types import IdBlock
from hybridrec.types.id_block import NO_ID

NO_GRAPH = (
    "a lookup of tiered or dynamic tables is part of a CUDA graph only where its ids are those of the batch as it "
    "comes: which rows are on the device is decided ahead; run the step without a graph"
)


NO_SECOND = (
    "ids of dynamic tables are looked up twice in one step, and a CUDA graph would count them once; look a batch up "
    "once and use what comes of it twice, or run the step without a graph"
)


@dataclass(eq=False)
class Fixed:
    """The slots of a block that stays where it is, and how captured lookups ask for them."""

    slots: Tensor
    asked: tuple[bool, bool] | None = None  # whether they train, and take gradients; None where there is none
    read: bool = False  # in this capture


class FixedSlots:
    """Those of a lookup, by the ids of the blocks."""

    def __init__(self) -> None:
        self._by_ids: Any = WeakTensorKeyDictionary()

    def fix(self, block: IdBlock) -> None:
        """Captured lookups of this very block, which stays where it is, shall find their slots in memory that stays."""
        self._by_ids[block.values] = Fixed(torch.full_like(block.values, NO_ID))

    def read(self, block: IdBlock, train: bool, gradients: bool, once: bool) -> Tensor:
        """Within a capture: the slots of a fixed block, as each replay finds them; of some tables only `once`."""
        if block.values not in self._by_ids:
            raise RuntimeError(NO_GRAPH)
        fixed: Fixed = self._by_ids[block.values]
        if fixed.read and once:
            raise RuntimeError(NO_SECOND)
        fixed.asked, fixed.read = (train, gradients), True
        return fixed.slots

    def of(self, block: IdBlock) -> Fixed | None:
        """Those of a fixed block, if it is one that captured lookups ask for."""
        found: Fixed | None = self._by_ids.get(block.values)
        if found is None or found.asked is None:
            return None
        found.read = False
        return found


def capturing(device: torch.device) -> bool:
    """Whether what is launched on a device becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
