"""What kernels that route ids know of each run of ids: one line of int64 numbers."""

from __future__ import annotations

from typing import NamedTuple

from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """The places of a line, and the values of some of its numbers."""

    START: int = 0  # of its ids in the block
    COUNT: int = 1
    TO: int = 2  # where its rows and keys begin
    SIZE: int = 3  # rows of the table
    POLICY: int = 4  # for ids outside of it
    HOLDERS: int = 5  # ranks that have its rows, dealt out by the remainder of the id
    FIRST: int = 6  # of its bases, one for each holder; NOT_ASKED: ids go as they are
    FEATURE: int = 7  # whose fault an id outside of the table is
    LENGTH: int = 8  # numbers in a line

    ERROR: int = 0
    ZERO: int = 1
    HASH: int = 2

    NOT_ASKED: int = -1
    NO_FAULT: int = 2**62  # no feature has so many ids


of = constants(Of())

POLICIES = {"error": 0, "zero": 1, "hash": 2}
