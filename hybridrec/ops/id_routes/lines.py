"""What kernels that route ids know of each run of ids: one line of int64 numbers."""

from __future__ import annotations

import triton.language as tl

START = tl.constexpr(0)  # of its ids in the block
COUNT = tl.constexpr(1)
TO = tl.constexpr(2)  # where its rows and keys begin
SIZE = tl.constexpr(3)  # rows of the table
POLICY = tl.constexpr(4)  # for ids outside of it
HOLDERS = tl.constexpr(5)  # ranks that have its rows, dealt out by the remainder of the id
FIRST = tl.constexpr(6)  # of its bases, one for each holder; NOT_ASKED: ids go as they are
FEATURE = tl.constexpr(7)  # whose fault an id outside of the table is
LENGTH = tl.constexpr(8)  # numbers in a line

ERROR, ZERO, HASH = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
POLICIES = {"error": 0, "zero": 1, "hash": 2}

NOT_ASKED = tl.constexpr(-1)
NO_FAULT = tl.constexpr(2**62)  # no feature has so many ids
