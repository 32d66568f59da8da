"""Rows of both tiers on the GPU: exchanged between them, read and written wherever they are.

Values are copied as whole words, never as numbers, so that no bit of them changes; columns that are packed on their way
have kernels of their own. Memory of the host is pinned, and kernels reach it over the link.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.row_cache.cache import Column, RowCache, of
from hybridrec.ops.row_cache.triton_packed import exchange_packed, read_packed, write_packed

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


@triton.jit
def exchange_rows(
    hot,  # [slots, D]
    cold,  # [places, D], on the host
    places,  # int32 [most]
    victims,  # int32 [most]: slots
    passing,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
):
    """Rows in slots and rows in places change over, [N] at a time; nothing where the admission is refused."""
    total = tl.where(tl.load(passing + of.REFUSES) != 0, 0, tl.load(passing + of.WANTED)).to(tl.int32)
    columns = tl.arange(0, WIDTH)
    for first in range(tl.program_id(0) * N, total, tl.num_programs(0) * N):
        i = first + tl.arange(0, N)
        mask = i < total
        slot = tl.load(victims + i, mask=mask, other=0).to(tl.int64)
        place = tl.load(places + i, mask=mask, other=0).to(tl.int64)
        inside = mask[:, None] & (columns[None, :] < D)
        of_slot, of_place = hot + slot[:, None] * D + columns[None, :], cold + place[:, None] * D + columns[None, :]
        comes, goes = tl.load(of_place, mask=inside, other=0), tl.load(of_slot, mask=inside, other=0)
        tl.debug_barrier()  # no thread may load what another has already exchanged
        tl.store(of_slot, comes, mask=inside)
        tl.store(of_place, goes, mask=inside)


@triton.jit
def _both(hot, cold, directory, rows, i, n, count, columns, D: tl.constexpr):
    """Where rows [N] are hot, where they are cold, and which of the two addresses [N, WIDTH] holds."""
    row = tl.load(rows + i, mask=i < n, other=-1)
    known = (row >= 0) & (row < count)
    entry = tl.load(directory + row, mask=known, other=0).to(tl.int64)
    of_slot = hot + tl.where(entry >= 0, entry, 0)[:, None] * D + columns[None, :]
    of_place = cold + tl.where(entry < 0, -1 - entry, 0)[:, None] * D + columns[None, :]
    inside = columns[None, :] < D
    return of_slot, of_place, (known & (entry >= 0))[:, None] & inside, (known & (entry < 0))[:, None] & inside


@triton.jit
def read_rows(
    hot, cold, directory, rows,
    out,  # [n, D]
    n, count,
    D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows [N] of any tier; zeros where there is none."""
    i, columns = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, WIDTH)
    of_slot, of_place, is_hot, is_cold = _both(hot, cold, directory, rows, i, n, count, columns, D)
    x = tl.load(of_slot, mask=is_hot, other=0) | tl.load(of_place, mask=is_cold, other=0)  # one of them is 0
    tl.store(out + i[:, None] * D + columns[None, :], x, mask=(i < n)[:, None] & (columns[None, :] < D))


@triton.jit
def write_rows(
    hot, cold, directory, rows,
    values,  # [n, D]
    n, count,
    D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Different rows [N] of any tier get these values."""
    i, columns = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, WIDTH)
    of_slot, of_place, is_hot, is_cold = _both(hot, cold, directory, rows, i, n, count, columns, D)
    inside = (i < n)[:, None] & (columns[None, :] < D)
    x = tl.load(values + i[:, None] * D + columns[None, :], mask=inside, other=0)
    tl.store(of_slot, x, mask=is_hot)
    tl.store(of_place, x, mask=is_cold)


def exchange(cache: RowCache, places: Tensor, victims: Tensor) -> None:
    """The rows of these slots and those of these places change over, in every column; or in none, if a launch fails."""
    done = 0
    try:
        for column in cache.columns:
            _exchange(cache, column, places, victims)
            done += 1
    except BaseException:
        with suppress(RuntimeError):  # of a card that does nothing any more: what was raised says why
            for column in cache.columns[:done]:
                _exchange(cache, column, places, victims)
        raise


def _exchange(cache: RowCache, column: Column, places: Tensor, victims: Tensor) -> None:
    hot, cold, shape = _parts(cache, column)
    programs = min(cache.sizes.movers, triton.cdiv(len(places), shape["N"]))
    if column.packs:
        state = cache.lasting, cache.passing, cache.key
        exchange_packed[(programs,)](hot, cold, places, victims, *state, **shape)
    else:
        exchange_rows[(programs,)](hot, cold, places, victims, cache.passing, **shape)


def read(cache: RowCache, column: int, rows: Tensor) -> Tensor:
    """The rows [N, width] of these numbers in a column, from wherever they are; zeros for those outside."""
    hot = cache.columns[column].hot
    out = torch.empty(len(rows), *hot.shape[1:], dtype=hot.dtype, device=hot.device)
    _everywhere(read_packed if cache.columns[column].packs else read_rows, cache, column, rows, out)
    return out


def write(cache: RowCache, column: int, rows: Tensor, values: Tensor) -> None:
    """Give different rows other values [N, width] in a column, wherever they are; those outside are passed over.

    Cold ones get the nearest that can be kept.
    """
    kernel = write_packed if cache.columns[column].packs else write_rows
    _everywhere(kernel, cache, column, rows, values.contiguous())


def _everywhere(kernel: Any, cache: RowCache, column: int, rows: Tensor, values: Tensor) -> None:
    if len(rows):
        hot, cold, shape = _parts(cache, cache.columns[column])
        given = values if cache.columns[column].packs else _words(values)
        to = hot, cold, cache.directory, rows, given, len(rows), len(cache.directory)
        kernel[(triton.cdiv(len(rows), shape["N"]),)](*to, **shape)


def _words(values: Tensor) -> Tensor:
    """The same memory as integers [n, words], of 4 bytes where a row has a whole number of those."""
    flat = values.view(len(values), values.shape[1:].numel())  # of which there may be none
    size = 4 if flat.shape[1] * flat.dtype.itemsize % 4 == 0 else flat.dtype.itemsize
    return flat.view(WORDS[size])


def _parts(cache: RowCache, column: Column) -> tuple[Tensor, Tensor, dict[str, int]]:
    """A column as its kernels have it, and the words or numbers of a row, and how many rows a program has in hand."""
    if not column.packs:
        hot, cold = map(_words, column)
        return hot, cold, _shape(cache, hot.shape[1])
    hot, cold = column
    return hot, cold, {**_shape(cache, hot.shape[1], least=4), "ROW": cold.shape[1]}


def _shape(cache: RowCache, count: int, least: int = 1) -> dict[str, int]:
    width = max(least, 1 << (count - 1).bit_length())
    return {"D": count, "WIDTH": width, "N": max(1, cache.sizes.numbers // width)}
