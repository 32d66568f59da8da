from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
import torch

from hybridrec.types import Ragged

ROWS = [[1, 2], [], [3]]
LISTS = [
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
    pa.list_view(pa.int64()),
    pa.large_list_view(pa.int64()),
]
STRINGS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_every_kind_of_list_converts(kind):
    assert Ragged.from_arrow(pa.array(ROWS, kind)).check().to_list() == ROWS


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_every_kind_of_string_converts_alone_and_in_lists(kind):
    rows = ["é", "", "abc"]
    strings = pa.array(rows, kind)
    assert Ragged.from_arrow(strings).to_list() == rows
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), strings)
    assert Ragged.from_arrow(lists).to_list() == [["é", ""], [], ["abc"]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], ids=str)
def test_every_kind_of_binary_converts(kind):
    ragged = Ragged.from_arrow(pa.array([b"\x00\xff", b"ab"], kind))
    assert (ragged.text, ragged.to_list()) == ("binary", [b"\x00\xff", b"ab"])


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_fixed_size_lists_convert_also_sliced(size, rows):
    expected = [[10 * r + c for c in range(size)] for r in range(rows)]
    array = pa.array([[-1] * size, *expected], pa.list_(pa.int64(), size))
    assert Ragged.from_arrow(array[1:]).check().to_list() == expected


@pytest.mark.parametrize(
    "kind",
    [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bool",
    ],
)
def test_every_number_type_keeps_its_type(kind):
    numbers = np.array([0, 1, 1], kind)
    array = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(numbers))
    ragged = Ragged.from_arrow(array)
    assert str(ragged.dtype) == f"torch.{kind}"
    assert ragged.to_list() == [[0], [1, 1]]
    assert ragged.to_arrow().type.value_type == array.type.value_type


def test_list_views_convert_in_any_order_and_sliced():
    views = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1, 0], pa.int32()), pa.array([1, 2, 0, 3], pa.int32()), [7, 8, 9]
    )
    assert Ragged.from_arrow(views).to_list() == [[9], [7, 8], [], [7, 8, 9]]
    assert Ragged.from_arrow(views[1:3]).to_list() == [[7, 8], []]


def test_chunks_are_joined_and_no_chunks_are_no_rows():
    chunked = pa.chunked_array([[[1]], [], [[2, 3]]], pa.list_(pa.int64()))
    assert Ragged.from_arrow(chunked).to_list() == [[1], [2, 3]]
    assert len(Ragged.from_arrow(pa.chunked_array([], pa.list_(pa.string())))) == 0


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([[1], None], pa.list_(pa.int64()), "1 of 2 rows are null (type list<item: int64>)"),
        ([[1, None, 2]], pa.list_(pa.int64()), "1 of 3 list entries are null"),
        ([[1, 2], None], pa.list_(pa.int64(), 2), "1 of 2 rows are null"),
        (["a", None], pa.string(), "1 of 2 rows are null"),
        (["a", None], pa.dictionary(pa.int8(), pa.string()), "1 of 2 rows are null"),
        ([[[1], None]], pa.list_(pa.list_(pa.int64())), "1 of 2 list entries are null"),
        ([[["a", None]]], pa.list_(pa.list_(pa.string())), "1 of 2 list entries are null"),
        ([[None]], pa.list_(pa.null()), "1 of 1 list entries are null"),
    ],
)
def test_nulls_are_refused_at_every_level(rows, kind, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ragged.from_arrow(pa.array(rows, kind))


def test_nulls_outside_a_slice_do_not_count():
    assert Ragged.from_arrow(pa.array([[None], [1], None])[1:2]).to_list() == [[1]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([1, 2]), "an array of int64 has one value per row"),
        (pa.array([[{"a": 1}]]), "no tensor holds Arrow's struct<a: int64>"),
        (pa.array([[0]], pa.list_(pa.timestamp("us"))), "no tensor holds Arrow's timestamp[us]"),
    ],
)
def test_arrays_that_are_no_ragged_column_are_refused_with_the_remedy(array, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        Ragged.from_arrow(array)


def test_writing_to_the_values_leaves_the_arrow_array_alone():
    array = pa.array(ROWS, pa.large_list(pa.int64()))
    Ragged.from_arrow(array).flat.fill_(9)
    assert array.to_pylist() == ROWS


def test_vectors_become_fixed_size_lists():
    ragged = Ragged(torch.arange(4.0).view(2, 2), torch.tensor([0, 2, 2]))
    assert ragged.to_arrow().to_pylist() == [[[0, 1], [2, 3]], []]


def test_types_that_arrow_lacks_are_refused():
    with pytest.raises(TypeError, match=r"Arrow has no torch\.bfloat16"):
        Ragged.from_lists([[1.0]], torch.bfloat16).to_arrow()
