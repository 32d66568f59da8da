"""Admission on the GPU: cold rows of a batch claim themselves, idle ones are chosen, and they change places.

No count comes to the host. README.md beside this file has the arrays, and what the caller must see to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import of as features
from hybridrec.ops.row_cache.cache import Admitted, RowCache, of
from hybridrec.ops.row_cache.triton_clock import choose
from hybridrec.ops.row_cache.triton_rows import exchange, read, write
from hybridrec.ops.unbroken import unbroken

__all__ = ["admit", "exchange", "land", "read", "write"]

AT_ONCE = 1 << 16  # claims that are undone: a card that lacks memory has some for so few


@triton.jit
def begin(lasting, passing, number):
    """One program: a new admission. What lands from now on is for the next one, so that all launches agree."""
    now = tl.load(lasting + of.NOW) + 1
    tl.store(lasting + of.NOW, now)
    tl.store(number, now)
    tl.store(passing + of.IDLE, tl.atomic_add(lasting + of.LANDED, 0, sem="acquire"))
    tl.store(passing + of.WANTED, 0)
    tl.store(passing + of.TAKEN, 0)


@triton.jit
def find_rows(
    rows,  # int [n]
    directory, stamp, lasting, passing,
    wanted,  # int32 [most]: rows that are cold, each once
    places,  # int32 [most]: where they are
    n, count,
    IDS: tl.constexpr,
):  # fmt: skip
    """Slots of hot rows are stamped; of a cold row's occurrences the one that claims it puts it on the list."""
    i = tl.program_id(0).to(tl.int64) * IDS + tl.arange(0, IDS)
    row = tl.load(rows + i, mask=i < n, other=-1)
    known = (row >= 0) & (row < count)
    entry = tl.load(directory + row, mask=known, other=0)
    cold = known & (entry < 0)
    tl.store(stamp + entry, tl.load(lasting + of.NOW).to(tl.int32), mask=known & (entry >= 0))
    tl.atomic_add(lasting + of.IDS, tl.sum(known.to(tl.int64)), sem="relaxed")
    misses = tl.sum(cold.to(tl.int64))
    if misses > 0:
        tl.atomic_add(lasting + of.COLD, misses, sem="relaxed")
        open = cold & (entry != of.CLAIMED)
        found = tl.atomic_xchg(directory + row, tl.full([IDS], of.CLAIMED, tl.int32), mask=open, sem="relaxed")
        mine = open & (found != of.CLAIMED)
        number = tl.cumsum(mine.to(tl.int32)) - 1
        number += tl.atomic_add(passing + of.WANTED, tl.sum(mine.to(tl.int64)), sem="relaxed")
        tl.store(wanted + number, row.to(tl.int32), mask=mine)
        tl.store(places + number, -1 - found, mask=mine)


@triton.jit
def conclude(lasting, passing):
    """One program: are there slots for all?"""
    wanted, taken = tl.load(passing + of.WANTED), tl.load(passing + of.TAKEN)
    refuses = taken < wanted
    tl.store(passing + of.REFUSES, refuses.to(tl.int64))
    tl.store(lasting + of.MOVED, tl.load(lasting + of.MOVED) + tl.where(refuses, 0, wanted))
    tl.store(lasting + of.REFUSED, tl.load(lasting + of.REFUSED) + refuses.to(tl.int64))
    tl.store(lasting + of.LACK, tl.maximum(tl.load(lasting + of.LACK), wanted - taken))


@triton.jit
def rename(
    directory, owner, passing, wanted, places,
    victims,  # int32 [most]: slots
    N: tl.constexpr,
):  # fmt: skip
    """Rows on the list are in their victims' slots from now on, and those in their places; or all is as before."""
    total, refuses = tl.load(passing + of.WANTED).to(tl.int32), tl.load(passing + of.REFUSES) != 0
    for first in range(tl.program_id(0) * N, total, tl.num_programs(0) * N):
        i = first + tl.arange(0, N)
        mask = i < total
        row, place = tl.load(wanted + i, mask=mask, other=0), tl.load(places + i, mask=mask, other=0)
        if refuses:
            tl.store(directory + row, -1 - place, mask=mask)
        else:
            slot = tl.load(victims + i, mask=mask, other=0)
            out = tl.load(owner + slot, mask=mask, other=0)
            tl.store(directory + row, slot, mask=mask)
            tl.store(directory + out, -1 - place, mask=mask)
            tl.store(owner + slot, row, mask=mask)


@triton.jit
def translate(rows, directory, passing, slots, n, count, IDS: tl.constexpr):
    """Every number of a row becomes its slot int64; others stay as they are."""
    i = tl.program_id(0).to(tl.int64) * IDS + tl.arange(0, IDS)
    row = tl.load(rows + i, mask=i < n, other=-1).to(tl.int64)
    known = (row >= 0) & (row < count)
    slot = tl.load(directory + row, mask=known, other=0).to(tl.int64)
    slot = tl.where(tl.load(passing + of.REFUSES) != 0, features.NO_ID, slot)
    tl.store(slots + i, tl.where(known, slot, row), mask=i < n)


@triton.jit
def note_landed(lasting, number):
    """One program, behind all that reads and writes the rows of the batch: another stream may go by it at once."""
    tl.atomic_max(lasting + of.LANDED, tl.load(number), sem="release")


def admit(
    cache: RowCache, rows: Tensor, exchange: Callable[[RowCache, Tensor, Tensor], None] = exchange
) -> Admitted:  # fmt: skip
    """Make the rows of these numbers hot, or none; numbers outside the table stay as they are.

    `exchange` has the rows of slots and places change over, and may still refuse to (staged.py).
    """
    ids, count, n = cache.sizes.ids, len(cache.directory), len(rows)
    most = min(n, cache.places)  # that can be cold
    programs = triton.cdiv(n, ids)
    wanted, places = torch.empty(2, most, dtype=torch.int32, device=rows.device)
    victims = torch.empty(most, dtype=torch.int32, device=rows.device)  # before rows are claimed: it may be lacking
    slots, number = (torch.empty(size, dtype=torch.int64, device=rows.device) for size in (n, 1))
    state = cache.lasting, cache.passing
    begin[(1,)](*state, number, num_warps=1)
    with unbroken(), unclaimed_again(cache, wanted, places) as undo:
        if n:
            find_rows[(programs,)](rows, cache.directory, cache.stamp, *state, wanted, places, n, count, IDS=ids)
        if most:
            choose(cache, victims)
            conclude[(1,)](*state, num_warps=1)
            exchange(cache, places, victims)
            undo.callback(exchange, cache, places, victims)
            given = cache.directory, cache.owner, cache.passing, wanted, places, victims
            rename[(min(cache.sizes.programs, triton.cdiv(most, ids)),)](*given, N=ids)
    if n:
        translate[(programs,)](rows, cache.directory, cache.passing, slots, n, count, IDS=ids)
    return Admitted(slots, number)


@contextmanager
def unclaimed_again(cache: RowCache, wanted: Tensor, places: Tensor) -> Iterator[ExitStack]:
    """Within it, an admission claims rows on these lists, which is undone where a launch cannot be.

    Then all is as before it began. What is to be undone before that is for the stack that it gives.
    """
    undo = ExitStack()
    try:
        yield undo
    except BaseException:
        with suppress(RuntimeError):  # of a card that does nothing any more: what was raised says why
            undo.close()
            count = int(cache.passing[of.WANTED])
            for row, place in zip(wanted[:count].split(AT_ONCE), places[:count].split(AT_ONCE), strict=True):
                cache.directory[row.long()] = -1 - place
        raise


def land(cache: RowCache, number: Tensor) -> None:
    """The batches up to this number are looked up and updated: their rows may go."""
    note_landed[(1,)](cache.lasting, number, num_warps=1)
