"""Rows as the cold tier keeps them: in their own type, in a half type, or in int8 with a scale.

A packed row that is unpacked and packed again is the same to the last bit, however its rounding is drawn: a row that
nobody trains can change tiers for ever. README.md beside this file has the formulas.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hybridrec.ops.constants import constants
from hybridrec.ops.philox import reference as philox


class Of(NamedTuple):
    """The numbers of rows in int8; those of floats are their bits."""

    MOST: int = 127  # the number that stands for the largest of a row
    SCALE: int = 4  # bytes of the scale, before the numbers
    CUT: int = 127  # bits of a scale that are zero, so that each number times the scale is exact
    LARGEST: int = 0x7C010200  # the largest scale: MOST times it is still finite
    LEAST: int = 0x00800000  # the smallest, of a normal float
    INFINITE: int = 0x7F800000
    NAN: int = 0x7FC00000


of = constants(Of())


def packed_width(dim: int, dtype: torch.dtype) -> int:
    """How many elements a row of `dim` numbers has where it is kept in this type.

    >>> packed_width(6, torch.bfloat16), packed_width(6, torch.int8)
    (6, 12)
    """
    return of.SCALE + -(-dim // 4) * 4 if dtype == torch.int8 else dim  # scales lie at multiples of 4 bytes


def pack(rows: Tensor, dtype: torch.dtype, draws: Tensor | None = None) -> Tensor:
    """Rows float32 [n, dim] on the CPU as they are kept in a type: to nearest, or up and down by draws uint16 [n, dim].

    >>> pack(torch.tensor([[1.0, -254.0, 3.0]]), torch.int8)
    tensor([[   0,    0,    0,   64,    0, -127,    2,    0]], dtype=torch.int8)
    """
    if dtype == rows.dtype:
        return rows
    if dtype == torch.int8:
        return _scaled(rows, draws)
    if draws is None:
        return rows.to(dtype)
    kind = "float16" if dtype == torch.float16 else "bfloat16"
    return torch.from_numpy(philox.round_with(rows.numpy(), draws.numpy(), kind)).view(dtype)


def unpack(cold: Tensor, hot: Tensor) -> Tensor:
    """Packed rows as those of a tensor of hot ones are.

    >>> unpack(pack(torch.tensor([[1.0, -254.0, 3.0]]), torch.int8), torch.empty(0, 3))
    tensor([[   0., -254.,    4.]])
    """
    if cold.dtype != torch.int8:
        return cold.to(hot.dtype)
    scales = cold[:, : of.SCALE].contiguous().view(torch.float32)  # [n, 1]
    return cold[:, of.SCALE :][:, : hot.shape[1]] * scales


def draws_of(key: int, places: Tensor, dim: int, admission: int) -> Tensor:
    """What the rounding of rows that go to places in an admission is drawn by, uint16 [n, dim]."""
    return torch.from_numpy(philox.rounding(key, places.numpy(), dim, admission))


def _scaled(rows: Tensor, draws: Tensor | None) -> Tensor:
    sizes = rows.abs().contiguous().view(torch.int32)  # as integers they are in the same order, and NaN above all
    largest = sizes.amax(1)
    some = torch.full_like(largest, (of.CUT + 1) // 2) if draws is None else draws.long().sum(1).int() & of.CUT
    scale = _scale(largest, some)
    there = (scale > 0)[:, None]
    numbers = torch.where(there, rows / scale[:, None], 0)
    numbers = numbers.round() if draws is None else _drawn(numbers, draws)
    numbers = torch.where(there & (sizes == largest[:, None]), of.MOST * rows.sign(), numbers)
    packed = torch.zeros(len(rows), packed_width(rows.shape[1], torch.int8), dtype=torch.int8)
    packed[:, : of.SCALE] = scale[:, None].view(torch.int8)
    packed[:, of.SCALE :][:, : rows.shape[1]] = numbers.clamp(-of.MOST, of.MOST)
    return packed


def _scale(largest: Tensor, some: Tensor) -> Tensor:
    """The scales float32 [n] of rows whose largest numbers have these bits; `some` is added before bits are cut."""
    bits = (largest.view(torch.float32) / of.MOST).view(torch.int32)
    bits = ((bits + some) & ~of.CUT).clamp(max=of.LARGEST)
    bits = torch.where(bits < of.LEAST, 0, bits)
    return torch.where(largest >= of.INFINITE, of.NAN, bits).view(torch.float32)


def _drawn(numbers: Tensor, draws: Tensor) -> Tensor:
    """Each of the numbers, or the next whole one above, with the probability that keeps it on average."""
    below = numbers.floor()
    return below + (((numbers - below) * 2**16).int() + draws.int() >> 16)
