from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from hybridrec.types import Ragged


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[1], [2]], torch.int64),
        ([[1], [2.5]], torch.float32),
        ([[True], []], torch.bool),
        ([[], []], torch.int64),
        ([], torch.int64),
        (["a"], torch.uint8),
    ],
)
def test_the_type_follows_the_values(rows, dtype):
    assert Ragged.from_lists(rows).dtype == dtype


def test_a_given_type_is_kept_also_without_values():
    assert Ragged.from_lists([[1]], torch.float16).dtype == torch.float16
    assert Ragged.from_lists([[]], torch.float64).dtype == torch.float64


def test_tuples_arrays_and_tensors_are_lists_too():
    assert Ragged.from_lists([(1, 2), np.array([3]), torch.tensor([], dtype=torch.int64)]).to_list() == [
        [1, 2],
        [3],
        [],
    ]
    assert Ragged.from_lists([[np.int64(4)]]).to_list() == [[4]]


def test_the_deepest_row_sets_the_depth():
    assert Ragged.from_lists([[], [[]], [[[7]]]]).depth == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], 2], "entry 1 of level 0 is 2 among lists"),
        ([[[1]], [2]], "entry 1 of level 1 is 2 among lists"),
        ([[1, None]], "a Ragged has no nulls"),
        ([[1], None], "entry 1 of level 0 is None among lists"),
        ([["a", 1]], "str and other values do not mix, but 1 is among them"),
        ([[b"a", "b"]], "do not mix, but b'a'"),
        ([[2**63]], "do not fit"),
        ([[object()]], "do not fit"),
    ],
)
def test_rows_that_are_no_ragged_column_are_refused_with_the_place(rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ragged.from_lists(rows)


def test_one_number_per_row_is_refused_as_no_list():
    with pytest.raises(TypeError, match="got 1; one number per row is a tensor"):
        Ragged.from_lists([1, 2])
