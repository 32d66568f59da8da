"""Rows of many tables on the GPU, copied one after the other: one launch for all tables of one dimension and type."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import TYPES
from hybridrec.ops.row_groups import triton as groups

ELEMENTS = 1024  # numbers that a program copies


@triton.jit
def gather_rows(
    values,  # int64 [N]: rows; zeros for one below 0
    lines,  # int64 [L, 4]: address of the table, begin and number of rows, where their numbers begin in the output
    first_programs,  # int32 [L + 1]
    out,  # float32
    ROW: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ALIGN: tl.constexpr,
    N: tl.constexpr,
    LINES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Rows [N] of one line."""
    program = tl.program_id(0)
    number = groups.feature_of(first_programs, program, LINES, STEPS)
    line = lines + number * 4
    table = tl.multiple_of(tl.load(line).to(tl.pointer_type(ROW)), 16 if ALIGN > 1 else 1)
    i = (program - tl.load(first_programs + number)) * N + tl.arange(0, N)
    mask = i < tl.load(line + 2)
    row = tl.load(values + tl.load(line + 1) + i, mask=mask, other=0)
    columns = tl.arange(0, WIDTH)
    inside = mask[:, None] & (columns[None, :] < D)
    x = tl.load(table + row[:, None] * D + columns[None, :], mask=inside & (row >= 0)[:, None], other=0.0)
    to = tl.multiple_of(tl.load(line + 3), ALIGN) + i.to(tl.int64)[:, None] * D + columns[None, :]
    tl.store(out + to, x.to(tl.float32), mask=inside)


def rows_of_program(dim: int) -> int:
    """How many rows of this dimension a program copies.

    >>> rows_of_program(48)
    16
    """
    return max(1, ELEMENTS >> (dim - 1).bit_length())


def gather(
    values: Tensor, lines: Tensor, first_programs: Tensor, programs: int, out: Tensor, dim: int, dtype: torch.dtype,
    align: int,
) -> None:  # fmt: skip
    """Copy the rows of all lines, whose tables have this dimension and type, to float32 numbers of `out`."""
    if programs:
        gather_rows[(programs,)](
            *(values, lines, first_programs, out),
            ROW=TYPES[dtype], D=dim, WIDTH=1 << (dim - 1).bit_length(), ALIGN=align, N=rows_of_program(dim),
            LINES=len(lines), STEPS=len(lines).bit_length(),
        )  # fmt: skip
