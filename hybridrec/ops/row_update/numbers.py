"""The numbers by which kernels know rules, the values of a step and the addresses of a table."""

from __future__ import annotations

import triton.language as tl

SGD, MOMENTUM, NESTEROV = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)
SUM = tl.constexpr(7)  # no rule: rows become their summed gradients
RULES = {"sgd": 0, "momentum": 1, "nesterov": 2, "adagrad": 3, "rowwise_adagrad": 4, "adam": 5, "ftrl": 6, "sum": 7}

# The numbers of a table's step, float32, in a line per table.
LR, MOMENTUM_RATE, DECAY, EPS, BETA1, BETA2 = (tl.constexpr(k) for k in range(6))
L1, L2, BETA, BOUND, CLIP, SCALE = (tl.constexpr(k) for k in range(6, 12))
NUMBERS = tl.constexpr(12)

# The addresses of a table, int64, in a line per table.
ROWS, FIRST, SECOND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
ADDRESSES = tl.constexpr(3)

# What the rounding of half rows is drawn by, int64, in a line per table: its key, the last word of the counter, and of
# a share of a table the id of its first row, how far it is to the next one, and the first column.
KEY, PURPOSE, FIRST_ID, STRIDE, COLUMN = (tl.constexpr(k) for k in range(5))
KEYS = tl.constexpr(5)

# Which rows half tables hold: all; shares whose columns begin at a multiple of eight; or shares that begin anywhere.
WHOLE, SHARE, ANYWHERE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
