"""Lists cut to a length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_list
from hybridrec.data.lists import offsets_of, ranges, renest, unnest
from hybridrec.data.transforms.base import Transform
from hybridrec.data.transforms.parameters import positive, store


@dataclass(frozen=True)
class Truncate(Transform):
    """At most n items of each row's list, the first or the last ones; deeper lists are kept whole.

    A fixed-size list stays one, of min(n, size) items.

    >>> Truncate(2, keep="last")(pa.array([[1, 2, 3], [4], None])).to_pylist()
    [[2, 3], [4], None]
    """

    n: int
    keep: Literal["first", "last"] = "first"
    op: ClassVar[str] = "truncate"

    def __post_init__(self) -> None:
        store(self, n=positive(self, "n"))
        if self.keep not in ("first", "last"):
            raise ValueError(f"truncate: keep is {self.keep!r}; valid are 'first', 'last'")

    def __call__(self, array: pa.Array) -> pa.Array:
        kind = self.output(array.type)
        child, offsets, valid = unnest(array)
        lengths = np.diff(offsets)
        if kind == array.type and lengths.max(initial=0) <= self.n:
            return array
        kept = np.minimum(lengths, self.n)
        starts = offsets[:-1] if self.keep == "first" else offsets[1:] - kept
        ends = offsets_of(kept)
        return renest(kind, child.take(pa.array(ranges(starts, ends))), ends, valid)

    def output(self, kind: pa.DataType) -> pa.DataType:
        if not is_list(kind):
            raise TypeError(f"{self!r} takes lists, not a column of type {kind}")
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(kind.value_field, min(self.n, kind.list_size))
        return kind
