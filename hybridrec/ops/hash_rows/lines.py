"""What kernels know of each dynamic table: a line that stays, and one of what they count and decide."""

from __future__ import annotations

from typing import NamedTuple

from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """The places of both lines, and the values of some of their numbers."""

    IDS: int = 0  # address: the id of each slot, int64
    TOUCHED: int = 1  # address: the clock of its last training lookup, uint32, or UNSEEN
    COUNTS: int = 2  # address: how often training has looked it up, uint32; LFU only
    FREE: int = 3  # address: slots that no row has, int32, from the place SIZE on in the order in which they are given
    SKETCH: int = 4  # address: int32 [4, WIDTH]; 0 where no minimum count is asked for
    WIDTH: int = 5
    LIMIT: int = 6  # of a counter of the sketch
    CAPACITY: int = 7
    KIND: int = 8  # of eviction
    LIFETIME: int = 9  # steps after which a row is gone
    DRAWN: int = 10  # ids whose 32-bit draw is below are let in
    MIN_COUNT: int = 11
    KEY: int = 12  # of draws
    SLOTS: int = 13  # that have memory: as many as the capacity, or what rows have needed so far
    LENGTH: int = 14

    NONE: int = 0  # kinds of eviction
    LRU: int = 1
    LFU: int = 2
    TTL: int = 3

    CLOCK: int = 0  # of the standing line
    SIZE: int = 1  # rows
    HITS: int = 2
    MISSES: int = 3
    INSERTED: int = 4
    REFUSED: int = 5
    EVICTED: int = 6
    EXPIRED: int = 7
    FRESH: int = 8  # of this batch: distinct ids that are let in and have no row
    RETURNED: int = 9  # those whose row has expired
    NEEDED: int = 10  # rows that must go
    GOING: int = 11  # rows that may go at once
    ALLOWED: int = 12  # new rows that there is room for
    GONE: int = 13  # rows that went
    UNPINNED: int = 14  # rows that could have gone
    FAULT: int = 15  # whether those were too few: nobody came, nobody went
    FAULTS: int = 16  # batches so far of which that is true, until somebody sets it to 0
    LACKED: int = 17  # NEEDED and UNPINNED of the last of them
    SPARED: int = 18
    STANDING: int = 19

    WORD: int = 0xFFFFFFFF
    UNSEEN: int = 0xFFFFFFFF  # TOUCHED of a slot that no row has
    MOST_COUNT: int = 2**32 - 2**16
    ADMISSION: int = 0xFFFFFFFF  # the column of a draw that decides who is let in

    NO_ID: int = 1 - 2**63  # instead of a slot, where there is none; as hybridrec.types.id_block has it
    MISSING: int = -1  # instead of a slot, while a batch is prepared; an expired row has -2 - slot
    EMPTY: int = 2**63 - 1  # where no id is wanted

    REFUSES: int = 1  # what becomes of an id, at its first place in the batch; 0 at others
    RETURNS: int = 2
    COMES: int = 3

    LOOKED: int = 64  # ids that a program looks for
    PASSES: int = 12  # digits of a score and an id
    DIGITS: int = 256
    STATE: int = 3  # numbers that a pass knows


class HomeOf(NamedTuple):
    """The places of a third line: where rows lie, and what one holds when it begins."""

    ROWS: int = 0  # address
    DIM: int = 1
    TYPE: int = 2
    INIT: int = 3
    FACTOR: int = 4  # the bits of a float32: of the whole numbers drawn; or the constant
    KEY: int = 5  # of draws
    COLUMN: int = 6  # of the whole row, where the columns here begin
    STATES: int = 7  # address, width and the bits of the fill of each of two; a width of 0 says that there is none
    STATE: int = 3  # numbers of a state
    LENGTH: int = 13

    FLOAT32: int = 0  # types
    FLOAT16: int = 1
    BFLOAT16: int = 2

    CONSTANT: int = 0  # initial values
    UNIFORM: int = 1
    NORMAL: int = 2


of = constants(Of())
home_of = constants(HomeOf())

KINDS = {kind: getattr(of, kind.upper()) for kind in ("none", "lru", "lfu", "ttl")}
COUNTERS = {name: getattr(of, name.upper()) for name in ("hits", "misses", "inserted", "refused", "evicted", "expired")}
