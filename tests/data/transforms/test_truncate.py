from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.transforms import Hash, Truncate
from tests.data.transforms.columns import WORDS, columns, xxh


@pytest.mark.parametrize("keep", ["first", "last"])
@given(st.data())
def test_truncate_keeps_n_items_of_each_row(keep, data):
    array = data.draw(columns(WORDS, pa.string()).filter(lambda a: pa.types.is_nested(a.type)))
    n = data.draw(st.integers(1, 4))
    result = Truncate(n, keep)(array)
    result.validate(full=True)
    assert result.type == Truncate(n, keep).output(array.type)
    cut = slice(None, n) if keep == "first" else slice(-n, None)
    assert result.to_pylist() == [None if row is None else row[cut] for row in array.to_pylist()]


def test_truncate_of_a_fixed_size_list_stays_fixed():
    array = pa.array([[1, 2, 3], None, [4, 5, None]], pa.list_(pa.int32(), 3)).slice(1)
    result = Truncate(2, "last")(array)
    assert result.type == pa.list_(pa.int32(), 2)
    assert result.to_pylist() == [None, [5, None]]


def test_truncate_takes_lists_of_dictionaries():
    items = pa.array(["a", "b", "a", "c"]).dictionary_encode()
    array = pa.ListArray.from_arrays(pa.array([0, 3, 4], pa.int32()), items)
    assert Truncate(1)(array).to_pylist() == [["a"], ["c"]]
    assert Hash()(array).to_pylist() == [[xxh("a"), xxh("b"), xxh("a")], [xxh("c")]]


def test_truncate_refuses_a_column_without_lists():
    with pytest.raises(TypeError, match="takes lists, not a column of type int64"):
        Truncate(2)(pa.array([1]))
