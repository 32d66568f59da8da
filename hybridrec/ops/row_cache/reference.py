"""Admission in plain PyTorch, one row after the other: what the kernels agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec.ops.row_cache.cache import Admitted, Column, RowCache, of
from hybridrec.ops.row_cache.packing import draws_of, pack, unpack
from hybridrec.types.id_block import NO_ID


def admit(cache: RowCache, rows: Tensor) -> Admitted:
    """Make the rows of these numbers hot, or none; numbers outside the table stay as they are.

    >>> cache = RowCache.make(rows=10, slots=2, device=torch.device("cpu"))
    >>> admit(cache, torch.tensor([7, 1, 7, -1])).slots
    tensor([ 0,  1,  0, -1])
    >>> admit(cache, torch.tensor([1, 2])).slots == NO_ID  # both slots are in use
    tensor([True, True])
    >>> cache.figures().lacking
    1
    """
    there = (rows >= 0) & (rows < len(cache.directory))
    entries = cache.directory[rows[there]]
    cache.lasting[of.NOW] += 1
    number = cache.lasting[of.NOW :][:1].clone()
    cache.lasting[of.IDS] += len(entries)
    cache.lasting[of.COLD] += int((entries < 0).sum())
    cache.stamp[entries[entries >= 0].long()] = int(number)
    wanted = list(dict.fromkeys(rows[there][entries < 0].tolist()))  # each once, in the order in which they come
    victims = _sweep(cache, len(wanted), spares=True)
    victims += _sweep(cache, len(wanted) - len(victims), spares=False)
    slots = rows.to(torch.int64, copy=True)
    slots[there] = NO_ID
    if len(victims) < len(wanted):
        cache.lasting[of.REFUSED] += 1
        cache.lasting[of.LACK] = max(int(cache.lasting[of.LACK]), len(wanted) - len(victims))
        return Admitted(slots, number)
    for row, slot in zip(wanted, victims, strict=True):
        _exchange(cache, row, slot)
    cache.lasting[of.MOVED] += len(wanted)
    slots[there] = cache.directory[rows[there]].long()
    return Admitted(slots, number)


def land(cache: RowCache, number: Tensor) -> None:
    """The batches up to this number are looked up and updated: their rows may go."""
    cache.lasting[of.LANDED] = max(int(cache.lasting[of.LANDED]), int(number))


def _sweep(cache: RowCache, wanted: int, spares: bool) -> list[int]:
    """Slots for so many rows, as far as a go of the hand finds them, stamped as if used."""
    block, blocks = cache.sizes.block, len(cache.passed)
    now, landed = int(cache.lasting[of.NOW]), int(cache.lasting[of.LANDED])
    window = min(blocks, -(-cache.sizes.span * wanted // block) + 1) if spares else blocks
    first, found = int(cache.lasting[of.HAND]), []
    for number in range(first, first + window):
        if len(found) == wanted:
            break
        at = number % blocks
        latest = min(landed, int(cache.passed[at])) if spares else landed
        idle = [at * block + i for i, used in enumerate(cache.stamp[at * block :][:block].tolist()) if used <= latest]
        taken = idle[: wanted - len(found)]
        cache.stamp[taken] = now
        found += taken
        if taken == idle:
            cache.passed[at], cache.lasting[of.HAND] = now, (at + 1) % blocks
    return found


def _exchange(cache: RowCache, row: int, slot: int) -> None:
    """A cold row takes a slot, and the row that was there takes its place."""
    place, out = ~int(cache.directory[row]), int(cache.owner[slot])
    for column in cache.columns:
        goes = _packed(cache, column, place, slot)
        column.hot[slot] = unpack(column.cold[place:][:1], column.hot)[0]
        column.cold[place] = goes
    cache.directory[row], cache.directory[out], cache.owner[slot] = slot, ~place, row


def _packed(cache: RowCache, column: Column, place: int, slot: int) -> Tensor:
    """The row of a slot as it is kept in a place, a copy; rounded by chance, so that no small change is always lost."""
    row = column.hot[slot:][:1].clone()
    if column.packs:
        number = int(cache.lasting[of.NOW])
        return pack(row, column.cold.dtype, draws_of(cache.key, torch.tensor([place]), row.shape[1], number))[0]
    return row[0]


def read(cache: RowCache, column: int, rows: Tensor) -> Tensor:
    """The rows [N, width] of these numbers in a column, from wherever they are; zeros for those outside."""
    hot, cold = cache.columns[column]
    found = torch.zeros(len(rows), *hot.shape[1:], dtype=hot.dtype, device=hot.device)
    for i, row in enumerate(rows.tolist()):
        if 0 <= row < len(cache.directory):
            entry = int(cache.directory[row])
            found[i] = hot[entry] if entry >= 0 else unpack(cold[~entry:][:1], hot)[0]
    return found


def write(cache: RowCache, column: int, rows: Tensor, values: Tensor) -> None:
    """Give different rows other values [N, width] in a column, wherever they are; those outside are passed over.

    Cold ones get the nearest that can be kept.
    """
    hot, cold = cache.columns[column]
    for row, value in zip(rows.tolist(), values, strict=True):
        if 0 <= row < len(cache.directory):
            entry = int(cache.directory[row])
            if entry >= 0:
                hot[entry] = value
            else:
                cold[~entry] = pack(value[None], cold.dtype)[0]
