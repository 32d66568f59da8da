"""Rows in two tiers where a card cannot reach the cold ones, such as those of a mapped file: the host hands them over.

An admission lists on the card which rows are to come, as any does. The host learns the list, copies those rows into
pinned memory, where the kernels exchange them, and then puts what has come there in their stead into the places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hybridrec.ops.row_cache import triton_rows
from hybridrec.ops.row_cache.cache import Column, RowCache, of
from hybridrec.ops.row_cache.packing import pack, unpack


class _Leaving(NamedTuple):
    """Rows that are on their way to their places."""

    places: Tensor  # int64 [count], on the CPU
    columns: list[tuple[Tensor, Tensor]]  # cold rows of each, and the pinned memory [count, width] for those
    there: Any  # the event after which that memory has them


class Stage:
    """Where rows pass between slots and places, one admission after the other.

    `check` raises where cold rows cannot be read; then the admission is refused as a whole, no row moves, and `failure`
    has the reason. Between `exchange` and `put_back` places still have what they had: nobody else may read them.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._leaving: _Leaving | None = None
        self.failure: Exception | None = None

    def exchange(self, cache: RowCache, places: Tensor, victims: Tensor) -> None:
        """As that of kernels which reach both tiers; it waits for the device."""
        passing = cache.passing.tolist()
        count = 0 if passing[of.REFUSES] else passing[of.WANTED]
        if not count:
            return
        try:
            self.put_back()
            self._check()
            at = places[:count].cpu().long()
            staged = [_copied(column, at) for column in cache.columns]
        except Exception as error:  # no row has moved, and claims are undone behind this
            cache.passing[of.REFUSES] = 1
            cache.lasting[of.MOVED] -= count
            self.failure = error
            return
        passed = [Column(hot, rows) for (hot, _), rows in zip(cache.columns, staged, strict=True)]
        order = torch.arange(count, dtype=torch.int32, device=places.device)
        triton_rows.exchange(replace(cache, columns=passed), order, victims)
        there = torch.cuda.current_stream(places.device).record_event() if places.is_cuda else None
        colds = [column.cold for column in cache.columns]
        self._leaving = _Leaving(at, list(zip(colds, staged, strict=True)), there)

    def put_back(self) -> None:
        """Rows that went are in their places when this returns; it waits for the device to hand them over."""
        leaving = self._leaving
        if leaving is None:
            return
        if leaving.there is not None:
            leaving.there.synchronize()
        self._check()
        for cold, staged in leaving.columns:
            cold.index_copy_(0, leaving.places, staged)
        self._leaving = None

    def failed(self) -> Exception | None:
        """Why the last admission was refused, if it was for want of its cold rows; told once."""
        failure, self.failure = self.failure, None
        return failure


def read(cache: RowCache, column: int, rows: Tensor) -> Tensor:
    """The rows [N, width] of these numbers in a column, from wherever they are; zeros for those outside."""
    hot, cold = cache.columns[column]
    slots, known = _entries(cache, rows)
    found = hot[slots.clamp(min=0)]
    found[~known] = 0
    at = (slots < 0).nonzero().view(-1)
    found[at] = unpack(cold.index_select(0, ~slots[at].cpu()), hot).to(found)
    return found


def write(cache: RowCache, column: int, rows: Tensor, values: Tensor) -> None:
    """Give different rows other values [N, width] in a column, wherever they are; those outside are passed over.

    Cold ones get the nearest that can be kept.
    """
    hot, cold = cache.columns[column]
    slots, known = _entries(cache, rows)
    there = (known & (slots >= 0)).nonzero().view(-1)
    hot[slots[there]] = values[there]
    at = (slots < 0).nonzero().view(-1)
    cold.index_copy_(0, ~slots[at].cpu(), pack(values[at].cpu(), cold.dtype))


def _entries(cache: RowCache, rows: Tensor) -> tuple[Tensor, Tensor]:
    """What the directory has of rows int64 [N], and which of them it knows; 0 for others."""
    known = (rows >= 0) & (rows < len(cache.directory))
    return cache.directory[torch.where(known, rows, 0)].long() * known, known


def _copied(column: Column, places: Tensor) -> Tensor:
    """The cold rows of places in pinned memory."""
    shape = len(places), *column.cold.shape[1:]
    made = torch.empty(shape, dtype=column.cold.dtype, pin_memory=column.hot.is_cuda)
    return torch.index_select(column.cold, 0, places, out=made)
