"""How an index lies in memory, and what kernels know of each one: README.md beside this file has the reasons."""

from __future__ import annotations

from typing import NamedTuple

from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """The words of a bucket, int32 [32], and the numbers of a table's line, int64 [4]."""

    WORDS: int = 32  # of a bucket: 128 bytes, a line of the cache
    ENTRIES: int = 10  # keys of 8 bytes, in the words 0 … 19
    KEYS: int = 16  # numbers of 8 bytes that a bucket would be
    SLOTS: int = 20  # where the slot of each key begins; FREE where there is none
    TAKEN: int = 30  # a bit for each entry that is in use
    PASSED: int = 31  # entries that went past this bucket, since it was full

    ALL: int = (1 << 10) - 1  # TAKEN of a full bucket
    FREE: int = -1
    AHEAD: int = 2  # buckets that who goes past a full one looks at together

    ADDRESS: int = 0  # of a table's buckets
    BUCKETS: int = 1  # 0: the table has no index, and its ids are slots already
    OLD: int = 2  # where the same two begin of the index that entries are moving from; 0 buckets: there is none
    LENGTH: int = 4  # numbers in a line


of = constants(Of())
