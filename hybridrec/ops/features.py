"""What GPU kernels know of each feature: one line of int64 numbers, in the order of their classes.

A class is what one launch can serve: the tables of one dimension and one type of rows. Lines of one class are
neighbours. Kernels name these constants through the module: those they import by name Triton compares at every launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS = tl.constexpr(0)  # address of the table's rows
SIZE = tl.constexpr(1)  # rows of the table
BASE = tl.constexpr(2)  # where its rows begin among those of all tables
TABLE = tl.constexpr(3)
CLASS = tl.constexpr(4)
START = tl.constexpr(5)  # of the feature's ids in the block
COUNT = tl.constexpr(6)  # ids
HOTNESS = tl.constexpr(7)  # ids per bag, -1 where that varies
LINE = tl.constexpr(8)  # of its offsets, where it varies
COLUMN = tl.constexpr(9)  # where its numbers begin in the output
STRIDE = tl.constexpr(10)  # from the numbers of one bag to those of the next
COMBINER = tl.constexpr(11)
NUMBER = tl.constexpr(12)  # the feature's place as declared
GROUP = tl.constexpr(13)  # ids that stand for one, and count as one in its bag
HASHED = tl.constexpr(14)  # whether an id outside the table has a row by its hash
WINNERS = tl.constexpr(15)  # max: where its winners begin
OCCURRENCES = tl.constexpr(16)  # max: where the gradients of its ids begin
LENGTH = tl.constexpr(17)  # numbers in a line


@triton.jit
def line(features, number):
    """Where a line begins. Its LENGTH is spelled out: Triton keeps compiled kernels by the text of their functions, in
    which the value of a constant does not show, and would run one that was compiled for lines of another length.
    """
    return features + number * 17


SUM, MEAN, SQRTN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # combiners
COMBINERS = {"sum": 0, "mean": 1, "sqrtn": 2, "none": 0, "max": 0}  # max has kernels of its own

NO_ID = tl.constexpr(1 - 2**63)  # as hybridrec.types.id_block has it

# In the places of rows, while their occurrences are grouped: there is but one, which needs none; and a mark of many.
SINGLE, MANY = tl.constexpr(-1), tl.constexpr(1 << 30)

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
