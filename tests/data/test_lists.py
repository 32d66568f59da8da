from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.lists import map_values, null_mask, offsets_of, ranges, renest, unnest, with_values


@given(st.data())
def test_a_list_taken_apart_and_put_together_is_the_same(data):
    kind = data.draw(st.sampled_from([pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)]))
    size = 2 if pa.types.is_fixed_size_list(kind) else 0
    item = st.lists(st.none() | st.integers(0, 9), min_size=size, max_size=size or 3)
    rows = data.draw(st.lists(st.none() | item, max_size=8))
    array = pa.array(rows, kind).slice(data.draw(st.integers(0, len(rows))))
    items, offsets, valid = unnest(array)
    assert len(items) == offsets[-1]
    result = renest(kind, items, offsets, valid)
    result.validate(full=True)
    assert result.equals(array)


def test_items_hidden_under_null_rows_are_left_out():
    mask = pa.array([False, True, False])
    array = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, 2, 3, 4]), mask=mask)
    items, offsets, valid = unnest(array)
    assert items.to_pylist() == [1, 4]
    assert offsets.tolist() == [0, 1, 1, 2]
    assert valid is not None
    assert valid.tolist() == [True, False, True]


def test_ranges_count_up_from_each_start():
    items, offsets, _ = unnest(pa.array([[5, 6], [], [7]]))
    assert ranges(offsets[:-1] + 10, offsets).tolist() == [10, 11, 12]
    assert len(items) == 3


def test_offsets_count_the_items_before_each_row():
    assert offsets_of(np.array([2, 0, 1])).tolist() == [0, 2, 2, 3]
    assert offsets_of(np.array([], np.int64)).tolist() == [0]
    assert offsets_of(np.array([3], np.int32)).dtype == np.int64


def test_a_null_mask_stands_for_a_slice_alone():
    array = pa.array([None, 1, None, 2])
    assert null_mask(array.slice(1, 1)) is None
    mask = null_mask(array.slice(1))
    assert mask is not None
    assert mask.tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 3)], ids=str)
def test_other_values_keep_the_kind_of_list(kind):
    changed = with_values(kind, pa.string())
    assert changed.value_type == pa.string()
    assert with_values(changed, pa.int8()) == kind


def test_a_function_is_mapped_over_the_values_inside_all_lists():
    seen = []

    def as_text(flat: pa.Array) -> pa.Array:
        seen.append(flat.to_pylist())
        return flat.cast(pa.string())

    result = map_values(pa.array([[[9]], [[1, 2], None], None, [[]]]).slice(1), as_text)
    assert seen == [[1, 2]]
    assert result.to_pylist() == [[["1", "2"], None], None, [[]]]


def test_more_items_than_int32_can_count_are_refused():
    with pytest.raises(ValueError, match="2147483648 items do not fit in one list"):
        renest(pa.list_(pa.int8()), pa.array([], pa.int8()), np.array([0, 2**31]), None)
