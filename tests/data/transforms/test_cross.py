from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.transforms import Cross
from tests.data.transforms.columns import WORDS, columns, xxh


def word(value):
    return xxh(value) if isinstance(value, str) else value


def cross_oracle(a, b, buckets):
    if a is None or b is None:
        return None
    ident = xxh(struct.pack("<qq", word(a), word(b)))
    return ident if buckets is None else ident % buckets


def pairs_oracle(a, b, a_list, b_list, buckets):
    if not a_list and not b_list:
        return cross_oracle(a, b, buckets)
    if (a_list and a is None) or (b_list and b is None):
        return None
    left, right = a if a_list else [a], b if b_list else [b]
    return [cross_oracle(x, y, buckets) for x in left for y in right]


@given(st.data())
def test_cross_hashes_every_pair_of_a_row(data):
    ids = st.integers(-(2**63), 2**63 - 1)
    left = data.draw(columns(ids, pa.int64(), max_depth=1))
    right = data.draw(columns(WORDS, pa.string(), max_depth=1))
    buckets = data.draw(st.none() | st.integers(1, 1000))
    rows = min(len(left), len(right))
    left, right = left.slice(0, rows), right.slice(0, rows)
    cross = Cross("l", "r", buckets=buckets)
    result = cross(left, right)
    result.validate(full=True)
    assert result.type == cross.output(left.type, right.type)
    a_list, b_list = pa.types.is_nested(left.type), pa.types.is_nested(right.type)
    expected = [
        pairs_oracle(a, b, a_list, b_list, buckets) for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)
    ]
    assert result.to_pylist() == expected


def test_cross_depends_on_the_order_of_its_columns_and_on_the_seed():
    a, b = pa.array([1]), pa.array([2])
    assert (
        len({c.to_pylist()[0] for c in (Cross("l", "r")(a, b), Cross("l", "r")(b, a), Cross("l", "r", seed=1)(a, b))})
        == 3
    )


def test_cross_of_fixed_size_lists_stays_fixed():
    left = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    assert Cross("l", "r")(left, pa.array([3, 4])).type == pa.list_(pa.int64(), 2)
    assert Cross("l", "r")(left, left).type == pa.list_(pa.int64(), 4)


def test_cross_names_its_column_after_both_unless_told():
    assert Cross("user", "item").name == "user_x_item"
    assert Cross("user", "item", name="pair").name == "pair"


def test_cross_refuses_columns_of_other_lengths_and_kinds():
    with pytest.raises(ValueError, match="2 and 1 rows"):
        Cross("l", "r")(pa.array([1, 2]), pa.array([1]))
    with pytest.raises(TypeError, match=r"column 'r' is double"):
        Cross("l", "r")(pa.array([1]), pa.array([0.5]))
    with pytest.raises(TypeError, match=r"column 'l' is list"):
        Cross("l", "r")(pa.array([[[1]]]), pa.array([1]))
