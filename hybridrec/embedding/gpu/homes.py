"""Homes: what kernels know of where rows lie, and of what one holds when it begins."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.initial import Constant, Initial, Uniform
from hybridrec.ops.hash_rows.lines import home_of
from hybridrec.ops.philox.reference import NORMAL_DEVIATION

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.hash_store import DeviceHashStore

TYPES = {torch.float32: home_of.FLOAT32, torch.float16: home_of.FLOAT16, torch.bfloat16: home_of.BFLOAT16}


class Homes:
    """The lines of dynamic tables, by the numbers that blocks know them by, sent anew when rows or state have moved."""

    def __init__(self, stores: Mapping[int, DeviceHashStore], count: int, device: torch.device) -> None:
        self._stores = stores
        self._there = torch.zeros(count, home_of.LENGTH, dtype=torch.int64, device=device)
        self._moves = -1

    def __call__(self) -> Tensor:
        """The lines int64 [count, LENGTH] as they are now."""
        moves = sum(store.moves for store in self._stores.values())
        if moves != self._moves:
            lines = torch.zeros(self._there.shape, dtype=torch.int64, pin_memory=self._there.is_cuda)
            for number, store in self._stores.items():
                lines[number] = torch.tensor(home_line(store))
            self._there.copy_(lines, non_blocking=True)  # the memory of `lines` is used anew only when it was read
            self._moves = moves
        return self._there


def home_line(store: DeviceHashStore) -> list[int]:
    """What kernels know of a store."""
    kind, factor = _drawn(store.table.init)
    key = store.key - (store.key >> 63 << 64)
    of_states = []
    for column in store.rule.state if store.rule else ():
        of_states += [store.states[column.name].data_ptr(), column.width(store.dim), bits(column.fill)]
    line = [store.there.data_ptr(), store.dim, TYPES[store.dtype], kind, bits(factor), key, store.share.column]
    return [*line, *of_states, *[0] * (home_of.LENGTH - len(line) - len(of_states))]


def _drawn(init: Initial) -> tuple[int, float]:
    """How initial values are drawn, and what the whole numbers that are drawn are multiplied by."""
    if isinstance(init, Constant):
        return home_of.CONSTANT, init.value
    if isinstance(init, Uniform):
        return home_of.UNIFORM, init.scale * 2.0**-23
    return home_of.NORMAL, init.std / NORMAL_DEVIATION


def bits(number: float) -> int:
    """Those of the nearest float32, as a whole number.

    >>> hex(bits(1.0))
    '0x3f800000'
    """
    return struct.unpack("<i", struct.pack("<f", np.float32(number)))[0]
