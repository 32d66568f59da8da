"""Rows can be taken in any sizes, whatever the sizes of the batches."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.rechunk import Rows


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 20))
def test_every_row_comes_once_in_order_and_only_the_last_take_is_short(sizes, wanted):
    values = list(range(sum(sizes)))
    batches, start = [], 0
    for size in sizes:
        batches.append(pa.record_batch({"a": pa.array(values[start : start + size], pa.int64())}))
        start += size
    rows = Rows(batches)
    taken = []
    while (batch := rows.take(wanted)) is not None:
        taken.append(batch["a"].to_pylist())
    assert [value for part in taken for value in part] == values
    assert all(len(part) == wanted for part in taken[:-1])
    assert rows.take(1) is None


def test_the_stream_is_read_no_further_than_needed():
    def batches():
        yield pa.record_batch({"a": [1, 2]})
        raise RuntimeError("read too far")

    assert Rows(batches()).take(2) is not None
