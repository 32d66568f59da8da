"""Which features of a layout are summed by row in registers, since their tables have few rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridrec.ops import features as line


@dataclass(frozen=True)
class Summed:
    """Those features of a class, and their tables."""

    first: int  # of their lines in the list of all classes
    features: int
    tables: int  # a line of each follows those of the features
    most: int  # rows of a table
    rows: int  # of all these tables
    ids: int  # of the longest feature


def summed_features(matrix: np.ndarray, few: np.ndarray, classes: int) -> tuple[list[Summed], np.ndarray]:
    """What each class sums, and the list of lines, int32; the matrix gets where the sums of each table begin.

    `few` says of each line whether its table has few rows. Tables stand once in the list, whatever their features.
    """
    made, listed = [], []
    for kind in range(classes):
        lines = np.flatnonzero(few & (matrix[:, line.CLASS.value] == kind))
        tables, owners, at = np.unique(matrix[lines, line.TABLE.value], return_index=True, return_inverse=True)
        rows = matrix[lines[owners], line.SIZE.value]
        matrix[lines, line.SUMS.value] = (np.cumsum(rows) - rows)[at]
        ids = matrix[lines, line.COUNT.value].max(initial=0)
        sizes = len(tables), int(rows.max(initial=0)), int(rows.sum()), int(ids)
        made.append(Summed(sum(map(len, listed)), len(lines), *sizes))
        listed += [lines, lines[owners]]
    return made, np.concatenate([np.empty(0, np.int32), *listed]).astype(np.int32)
