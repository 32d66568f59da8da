from __future__ import annotations

import pyarrow as pa
import pytest

from hybridrec.data.extra import carried, extra_type, without_nulls

DEEP = pa.list_(pa.list_(pa.int64()))


def levels(*values, kind=DEEP):
    """Defaults of a row, a list and an element."""
    made = []
    for value in values:
        made.append(pa.scalar(value, kind))
        kind = kind.value_type if pa.types.is_list(kind) else kind
    return made


@pytest.mark.parametrize(
    ("kind", "travels"),
    [
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.list_(pa.dictionary(pa.int8(), pa.string()))), pa.list_(pa.list_(pa.string()))),
        (pa.list_(pa.timestamp("ns", "UTC"), 2), pa.list_(pa.int64(), 2)),
        (pa.time32("s"), pa.int32()),
        (pa.decimal128(9, 2), pa.float64()),
        (pa.binary(3), pa.binary()),
        (pa.null(), pa.float32()),
        (pa.uint16(), pa.uint16()),
    ],
    ids=str,
)
def test_a_column_travels_in_one_type(kind, travels):
    assert extra_type(kind) == travels


def test_chunks_of_different_encodings_become_one_type():
    words = [[["a", None], []], None, [["b"]]]
    kinds = [
        pa.list_(pa.list_(pa.string())),
        pa.large_list(pa.list_(pa.large_string())),
        pa.list_(pa.large_list(pa.dictionary(pa.int8(), pa.string()))),
    ]
    target = extra_type(kinds[0])
    columns = [carried(pa.array(words, kind).slice(1), target) for kind in kinds]
    assert {column.type for column in columns} == {target}
    assert all(column.to_pylist() == words[1:] for column in columns)


def test_empty_makes_null_lists_empty_and_drops_null_elements():
    column = pa.array([[[1, None], None], None, [], [[None]]], DEEP)
    assert without_nulls(column, "empty").to_pylist() == [[[1], []], [], [], [[]]]


def test_empty_makes_null_text_empty():
    assert without_nulls(pa.array(["a", None]), "empty").to_pylist() == ["a", ""]
    assert without_nulls(pa.array([b"a", None], pa.large_binary()), "empty").to_pylist() == [b"a", b""]
    assert without_nulls(pa.array([["a", None], None]), "empty").to_pylist() == [["a"], []]


def test_a_default_fills_every_level():
    column = pa.array([[[1, None], None], None], DEEP)
    filled = without_nulls(column, "default", levels([[7]], [7], 7))
    assert filled.to_pylist() == [[[1, 7], [7]], [[7]]]


def test_a_default_for_rows_says_nothing_about_what_lies_inside_them():
    rows = levels([[1], [2]])
    assert without_nulls(pa.array([None, [[3]]], DEEP), "default", rows).to_pylist() == [[[1], [2]], [[3]]]
    with pytest.raises(ValueError, match="a null int64 inside a row, and the default stands for whole rows"):
        without_nulls(pa.array([[[None]]], DEEP), "default", rows)


@pytest.mark.parametrize("column", [[None], [[None]], [[[None]]]], ids=["row", "list", "element"])
def test_error_is_raised_at_every_level(column):
    with pytest.raises(ValueError, match='policy of this column is null="error"'):
        without_nulls(pa.array(column, DEEP), "error")


def test_a_null_number_outside_lists_cannot_be_empty():
    with pytest.raises(ValueError, match="a null int64"):
        without_nulls(pa.array([1, None]), "empty")


def test_fixed_size_lists_with_nulls_lose_their_fixed_size_only_then():
    kind = pa.list_(pa.list_(pa.int64()), 2)
    whole = pa.array([[[1], [2]]], kind)
    assert without_nulls(whole, "empty").type == kind
    assert without_nulls(pa.array([[[1], [None]], None], kind), "empty").to_pylist() == [[[1], []], []]
    flat = pa.array([[1, None], None, [3, 4]], pa.list_(pa.int64(), 2)).slice(1)
    assert without_nulls(flat, "empty").to_pylist() == [[], [3, 4]]


def test_what_lies_under_a_null_list_is_never_seen():
    hidden = pa.ListArray.from_arrays([0, 2, 4], [1, 2, 3, 4], mask=pa.array([True, False]))
    assert without_nulls(hidden, "empty").to_pylist() == [[], [3, 4]]
