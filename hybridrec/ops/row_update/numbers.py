"""The numbers by which kernels know rules, the values of a step and the addresses of a table."""

from __future__ import annotations

from typing import NamedTuple

from hybridrec.ops.constants import constants


class Of(NamedTuple):
    """Rules, and the places in lines."""

    SGD: int = 0
    MOMENTUM: int = 1
    NESTEROV: int = 2
    ADAGRAD: int = 3
    ROWWISE_ADAGRAD: int = 4
    ADAM: int = 5
    FTRL: int = 6
    SUM: int = 7  # no rule: rows become their summed gradients

    # The numbers of a table's step, float32, in a line per table.
    LR: int = 0
    MOMENTUM_RATE: int = 1
    DECAY: int = 2
    EPS: int = 3
    BETA1: int = 4
    BETA2: int = 5
    L1: int = 6
    L2: int = 7
    BETA: int = 8
    BOUND: int = 9
    CLIP: int = 10
    SCALE: int = 11
    NUMBERS: int = 12

    # The addresses of a table, int64, in a line per table.
    ROWS: int = 0
    FIRST: int = 1
    SECOND: int = 2
    ADDRESSES: int = 3

    # What the rounding of half rows is drawn by, int64, in a line per table: its key, the last word of the counter,
    # and of a share of a table the id of its first row, how far it is to the next one, and the first column. Where rows
    # change places, the address of int32 numbers of those that are there, and where they have any ids, that of those,
    # int64; else 0.
    KEY: int = 0
    PURPOSE: int = 1
    FIRST_ID: int = 2
    STRIDE: int = 3
    COLUMN: int = 4
    OWNERS: int = 5
    IDS: int = 6
    KEYS: int = 7

    # Which rows half tables hold: one of four, and LISTED is added where some have any ids.
    WHOLE: int = 0  # all
    SHARE: int = 1  # shares whose columns begin at a multiple of eight
    OWNED: int = 2  # the same, of which some rows are here at a time
    ANYWHERE: int = 3  # shares that begin anywhere
    LISTED: int = 4


of = constants(Of())

RULES = {"sgd": 0, "momentum": 1, "nesterov": 2, "adagrad": 3, "rowwise_adagrad": 4, "adam": 5, "ftrl": 6, "sum": 7}
