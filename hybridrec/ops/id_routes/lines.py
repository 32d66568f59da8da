"""What kernels that route ids know of each run of ids: one line of int64 numbers."""

from __future__ import annotations

from typing import NamedTuple

from hybridrec.embedding.share import OWNER_SEED
from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """The places of a line, and the values of some of its numbers."""

    START: int = 0  # of its ids in the block
    COUNT: int = 1
    TO: int = 2  # where its rows and keys begin
    SIZE: int = 3  # rows of the table
    POLICY: int = 4  # for ids outside of it
    HOLDERS: int = 5  # ranks that have its rows, dealt out by the remainder of the id, or of its hash with ANY
    FIRST: int = 6  # of its bases, one for each holder; NOT_ASKED: ids go as they are
    FEATURE: int = 7  # whose fault an id outside of the table is
    NUMBERS: int = 8  # of its ids, where they begin, with ANY; EVERY: each occurrence is asked for by itself
    LENGTH: int = 9  # numbers in a line

    ERROR: int = 0
    ZERO: int = 1
    HASH: int = 2
    ANY: int = 3  # no id is outside: rows come and go, and go by their ids

    NOT_ASKED: int = -1
    EVERY: int = -1
    MOST_NUMBERS: int = 2**31  # of ids with ANY: more than a block has
    SEED: int = OWNER_SEED  # of the hash by which ids with ANY are dealt out
    NO_FAULT: int = 2**62  # no feature has so many ids


of = constants(Of())

POLICIES = {"error": 0, "zero": 1, "hash": 2}
