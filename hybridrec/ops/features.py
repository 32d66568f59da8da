"""What GPU kernels know of each feature: one line of int64 numbers, in the order of their classes.

A class is what one launch can serve: the tables of one dimension and one type of rows. Lines of one class are
neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """The places of a line, and the values of some of its numbers."""

    ROWS: int = 0  # address of the table's rows
    SIZE: int = 1  # rows of the table
    BASE: int = 2  # where its rows begin among those of all tables
    TABLE: int = 3
    CLASS: int = 4
    START: int = 5  # of the feature's ids in the block
    COUNT: int = 6  # ids
    HOTNESS: int = 7  # ids per bag, -1 where that varies
    LINE: int = 8  # of its offsets, where it varies
    COLUMN: int = 9  # where its numbers begin in the output
    STRIDE: int = 10  # from the numbers of one bag to those of the next
    COMBINER: int = 11
    NUMBER: int = 12  # the feature's place as declared
    GROUP: int = 13  # ids that stand for one, and count as one in its bag
    HASHED: int = 14  # whether an id outside the table has a row by its hash
    WINNERS: int = 15  # max: where its winners begin
    OCCURRENCES: int = 16  # max: where the gradients of its ids begin
    LENGTH: int = 17  # numbers in a line

    SUM: int = 0  # combiners
    MEAN: int = 1
    SQRTN: int = 2

    NO_ID: int = 1 - 2**63  # as hybridrec.types.id_block has it

    MANY: int = 1 << 30  # in the places of rows, while their occurrences are grouped: a mark of those with many


of = constants(Of())

COMBINERS = {"sum": 0, "mean": 1, "sqrtn": 2, "none": 0, "max": 0}  # max has kernels of its own
TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
