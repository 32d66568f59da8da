from __future__ import annotations

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hybridrec.types import Ragged


def bytes_of(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("values", "offsets", "text", "message"),
    [
        (torch.arange(3), torch.tensor([0, 2]), None, "run from 0 to len(values) = 3, got 0 to 2"),
        (torch.arange(3), torch.tensor([1, 3]), None, "run from 0 to len(values) = 3, got 1 to 3"),
        (torch.arange(3), torch.tensor([0, 2, 1, 3]), None, "row 1 goes from 2 to 1"),
        (torch.arange(0), torch.tensor([], dtype=torch.int64), None, "no rows is offsets [0]"),
        (torch.arange(3), torch.tensor([[0, 3]]), None, "shape [rows + 1], got [1, 2]"),
        (torch.tensor(3), torch.tensor([0, 1]), None, "at least one dimension"),
        (torch.arange(3, device="meta"), torch.tensor([0, 3]), None, "values are on meta, offsets on cpu"),
        (bytes_of("abc"), torch.tensor([0, 3]), "latin1", "'utf8', 'binary' or None, got 'latin1'"),
    ],
)
def test_wrong_parts_are_refused_with_the_value_and_the_rule(values, offsets, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ragged(values, offsets, text=text)


@pytest.mark.parametrize(
    ("values", "offsets", "text", "message"),
    [
        ([1, 2], torch.tensor([0, 2]), None, "got list; see from_lists"),
        (torch.arange(3), torch.tensor([0, 3], dtype=torch.int32), None, "got torch.int32; convert with"),
        (torch.arange(3), [0, 3], None, "got list"),
        (torch.arange(3), torch.tensor([0, 3]), "utf8", "1-d uint8 tensor"),
        (
            Ragged(bytes_of("ab"), torch.tensor([0, 2]), text="utf8"),
            torch.tensor([0, 1]),
            "utf8",
            "on the inner",
        ),
    ],
)
def test_wrong_types_are_refused_with_the_remedy(values, offsets, text, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        Ragged(values, offsets, text=text)


def test_tensors_without_data_are_checked_by_shape_alone():
    meta = Ragged(torch.arange(3, device="meta"), torch.arange(2, device="meta"))
    assert repr(meta) == "Ragged(1 lists of int64, mean length 3, meta)"
    with FakeTensorMode():
        assert len(Ragged(torch.arange(3), torch.arange(5))) == 4


def test_check_finds_wrong_offsets_of_an_inner_level():
    inner = Ragged.trusted(torch.arange(3), torch.tensor([0, 9]))
    with pytest.raises(ValueError, match="got 0 to 9"):
        Ragged.trusted(inner, torch.tensor([0, 1])).check()


def test_rows_are_views_of_the_values():
    ragged = Ragged(torch.arange(5), torch.tensor([0, 2, 5]))
    ragged[1][0] = 77
    ragged[1:][0][1] = 78
    assert ragged.to_list() == [[0, 1], [77, 78, 4]]


def test_rows_of_each_kind_have_their_own_type():
    assert Ragged.from_lists(["é", ""])[0] == "é"
    assert Ragged.from_lists([b"\xff", b""])[-1] == b""
    assert Ragged.from_lists([["a"], []])[0].to_list() == ["a"]
    assert Ragged.from_lists([[[1]], []])[0].to_list() == [[1]]
    assert Ragged.from_lists([[1.5]])[0].tolist() == [1.5]


@pytest.mark.parametrize("row", [2, -3])
def test_a_row_out_of_range_is_an_index_error_that_gives_the_count(row):
    with pytest.raises(IndexError, match=f"row {row} is out of range: this Ragged has 2 rows"):
        Ragged.from_lists([[1], []])[row]


def test_slices_in_other_steps_are_refused():
    with pytest.raises(ValueError, match="steps of 1, got 2"):
        Ragged.from_lists([[1], []])[::2]


def test_depth_counts_lists_and_not_strings():
    assert Ragged.from_lists(["a"]).depth == 0
    assert Ragged.from_lists([["a"]]).depth == 1
    assert Ragged.from_lists([[["a"]]]).depth == 2
    assert Ragged.from_lists([[[[1]]]]).depth == 3


@pytest.mark.parametrize(
    ("ragged", "text"),
    [
        (Ragged.from_lists([]), "Ragged(0 lists of int64, mean length 0, cpu): []"),
        (Ragged.from_lists(["ab", "c"]), "Ragged(2 utf8 strings, mean length 1.5, cpu): ['ab', 'c']"),
        (
            Ragged.from_lists([[[1, 2]], [[], [3]]]),
            "Ragged(2 lists of lists of int64, mean lengths 1.5 and 1, cpu): [[[1, 2]], [[], [3]]]",
        ),
        (
            Ragged.from_lists([list(range(9))] * 6),
            "Ragged(6 lists of int64, mean length 9, cpu): [" + "[0, 1, 2, 3, 4, 5, …], " * 4 + "…]",
        ),
        (
            Ragged(torch.zeros(2, 3), torch.tensor([0, 2])),
            "Ragged(1 lists of float32 [3], mean length 2, cpu): [[[0, 0, 0], [0, 0, 0]]]",
        ),
        (
            Ragged(torch.tensor([255], dtype=torch.uint8), torch.tensor([0, 1]), text="utf8"),
            "Ragged(1 utf8 strings, mean length 1, cpu): not valid utf8",
        ),
    ],
)
def test_repr_shows_rows_kind_mean_length_device_and_the_first_values(ragged, text):
    assert repr(ragged) == text


def test_equal_compares_bits_types_and_structure():
    a = Ragged(torch.tensor([float("nan"), 0.0]), torch.tensor([0, 2]))
    assert a.equal(Ragged(a.values.clone(), a.offsets.clone()))
    assert not a.equal(Ragged(torch.tensor([float("nan"), -0.0]), a.offsets))
    assert not a.equal(Ragged(a.values, torch.tensor([0, 1, 2])))
    assert not Ragged.from_lists([[1]]).equal(Ragged.from_lists([[1]], torch.int32))
    assert not Ragged.from_lists([[1]]).equal(Ragged.from_lists([[[1]]]))
    assert not Ragged.from_lists([[[1]]]).equal(Ragged.from_lists([[1]]))
    assert not Ragged.from_lists(["a"]).equal(Ragged.from_lists([b"a"]))


def test_to_moves_every_level():
    moved = Ragged.from_lists([[["a"], []]]).to("meta")
    assert moved.device.type == "meta"
    assert moved.values.device.type == "meta"
    assert moved.flat.device.type == "meta"
    assert moved.leaf_text == "utf8"


def test_pin_memory_pins_every_tensor(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: pinned.append(t) or t.clone())
    ragged = Ragged.from_lists([[[1], [2]]])
    assert ragged.pin_memory().equal(ragged)
    assert len(pinned) == 3
