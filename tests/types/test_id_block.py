from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from hybridrec.types import IdBlock, Ragged


def block() -> IdBlock:
    """user: 1 per row, tags: ragged, pair: 2 per row, words: ragged; three rows."""
    features = {
        "user": torch.tensor([7, 8, 9]),
        "tags": Ragged.from_lists([[1], [], [2, 3]]),
        "pair": torch.tensor([[1, 2], [3, 4], [5, 6]]),
        "words": Ragged.from_lists([[], [5], []]),
    }
    return IdBlock.from_ragged(features, weights={"tags": torch.tensor([0.5, 0.25, 2.0])})


def test_a_packed_block_lies_feature_after_feature():
    b = block()
    assert b.values.tolist() == [7, 8, 9, 1, 2, 3, 1, 2, 3, 4, 5, 6, 5]
    assert b.starts == (0, 3, 6, 12, 13)
    assert b.hotness == (1, None, 2, None)
    assert b.offsets.tolist() == [[0, 1, 1, 3], [0, 0, 1, 1]]
    assert (b.batch_size, len(b), list(b)) == (3, 4, ["user", "tags", "pair", "words"])
    assert "tags" in b
    assert "nope" not in b


def test_each_feature_comes_back_as_a_view_of_the_values():
    b = block()
    assert b["user"].to_list() == [[7], [8], [9]]
    assert b["pair"].to_list() == [[1, 2], [3, 4], [5, 6]]
    assert b["words"].to_list() == [[], [5], []]
    for name in b:
        b[name].check()
        assert b[name].flat.untyped_storage().data_ptr() == b.values.untyped_storage().data_ptr()
    b["tags"].flat[0] = 99
    b.matrix("pair")[0, 0] = 98
    assert b.values[3] == 99
    assert b.values[6] == 98
    assert b["tags"].offsets.data_ptr() == b.offsets.data_ptr()


@pytest.mark.parametrize("rows", [[[1], [], [2, 3]], [[1], [2], [3]], [[], [], [1, 2, 3]]])
def test_a_ragged_feature_with_as_many_ids_as_rows_stays_ragged(rows):
    b = IdBlock.from_lists({"tags": rows})
    assert b.hotness == (None,)
    assert b["tags"].to_list() == rows
    assert b.lengths("tags").tolist() == [len(row) for row in rows]
    parts = b.to_kjt()
    assert IdBlock.from_kjt(*parts).hotness == (None,)
    assert IdBlock.from_kjt(*parts)["tags"].to_list() == rows


def test_lengths_weights_and_matrix_belong_to_their_feature():
    b = block()
    assert [b.lengths(name).tolist() for name in b] == [[1, 1, 1], [1, 0, 2], [2, 2, 2], [0, 1, 0]]
    assert b.weights_of("tags").tolist() == [0.5, 0.25, 2.0]
    assert b.weights_of("pair").tolist() == [1] * 6
    assert replace(b, weights=None).weights_of("tags") is None
    assert b.matrix("user").tolist() == [[7], [8], [9]]
    with pytest.raises(ValueError, match="'tags' is ragged and has no matrix"):
        b.matrix("tags")


def test_neighbours_are_selected_without_a_copy_and_others_with_one():
    b = block()
    near = b.select(["tags", "pair"])
    assert near.values.data_ptr() == b.values[3:].data_ptr()
    assert near.offsets.data_ptr() == b.offsets.data_ptr()
    far = b.select(["words", "user", "tags"]).check()
    assert [far[name].to_list() for name in far] == [[[], [5], []], [[7], [8], [9]], [[1], [], [2, 3]]]
    assert far.weights_of("tags").tolist() == [0.5, 0.25, 2.0]
    assert (len(b.select([])), b.select([]).batch_size) == (0, 3)


@pytest.mark.parametrize("ask", [lambda b: b["nope"], lambda b: b.select(["nope"]), lambda b: b.lengths("nope")])
def test_an_unknown_feature_is_named_beside_the_known_ones(ask):
    with pytest.raises(KeyError, match="no feature 'nope' in this block; it has user, tags, pair, words"):
        ask(block())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ("a", "b", "a", "c")}, "['a'] appear more than once"),
        ({"hotness": (1, None, 2)}, "4 features need 4 hotness entries and 5 starts, got 3 and 5"),
        ({"hotness": (1, None, -2, None)}, "must not be negative"),
        ({"starts": (0, 3, 6, 12, 14)}, "rise from 0 to len(values) = 13"),
        ({"starts": (0, 6, 3, 12, 13)}, "rise from 0"),
        ({"starts": (0, 2, 6, 12, 13)}, "'user' has 2 ids, but 1 per row and 3 rows make 3"),
        ({"hotness": (1, None, 3, None)}, "'pair' has 6 ids, but 3 per row and 3 rows make 9"),
        ({"offsets": torch.zeros(2, 3, dtype=torch.int64)}, "int64 [2, 4] (ragged features, batch_size + 1)"),
        ({"offsets": torch.zeros(2, 4)}, "got torch.float32 [2, 4]"),
        ({"offsets": torch.tensor([[0, 1, 1, 3], [0, 0, 1, 2]])}, "'words' must run from 0 to 1, got 0 to 2"),
        ({"weights": torch.ones(3)}, "weights must be float32 [13]"),
        ({"weights": torch.ones(13, dtype=torch.float64)}, "weights must be float32 [13]"),
        ({"weights": torch.ones(13, device="meta")}, "must share a device, got ['cpu', 'meta']"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(block(), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.zeros(13)}, "int64 tensor of one dimension, got torch.float32 [13]"),
        ({"values": torch.zeros(26, dtype=torch.int64)[::2]}, "contiguous"),
        ({"names": ["user", "tags", "pair", "words"]}, "names must be a tuple, got list"),
    ],
)
def test_parts_of_the_wrong_type_are_refused(change, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        replace(block(), **change)


def test_check_finds_offsets_that_decrease_inside():
    with pytest.raises(ValueError, match="feature 'tags': offsets must not decrease"):
        replace(block(), offsets=torch.tensor([[0, 2, 1, 3], [0, 0, 1, 1]])).check()


@pytest.mark.parametrize(
    ("features", "weights", "error", "message"),
    [
        ({"a": [[1]], "b": [[1], [2]]}, None, ValueError, "'b' has 2, not 1"),
        ({"a": [[1.5]]}, None, TypeError, "'a' holds torch.float32"),
        ({"a": ["x"]}, None, TypeError, "'a' holds strings"),
        ({"a": [["x"]]}, None, TypeError, "'a' holds strings"),
        ({"a": [[[1]]]}, None, ValueError, "'a' must be one list of ids per row"),
        ({"a": [[1]]}, {"b": torch.ones(1)}, ValueError, "weights for ['b'], which are no features here"),
        ({"a": [[1]]}, {"a": torch.ones(2)}, ValueError, "'a' has 1 ids but 2 weights"),
    ],
)
def test_columns_that_are_no_ids_are_refused_by_name(features, weights, error, message):
    columns = {name: Ragged.from_lists(rows) for name, rows in features.items()}
    with pytest.raises(error, match=re.escape(message)):
        IdBlock.from_ragged(columns, weights)


def test_a_tensor_of_three_dimensions_is_no_feature():
    with pytest.raises(ValueError, match=re.escape("[B] or [B, hotness], got [1, 1, 1]")):
        IdBlock.from_ragged({"a": torch.zeros(1, 1, 1, dtype=torch.int64)})


def test_ids_too_large_for_int64_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        IdBlock.from_lists({"a": [2**64]})


def test_narrow_and_unsigned_ids_are_widened_bit_for_bit():
    wide = torch.tensor([2**64 - 1], dtype=torch.uint64)
    b = IdBlock.from_ragged({"a": torch.tensor([3], dtype=torch.uint8), "b": wide})
    assert b.values.tolist() == [3, -1]


@pytest.mark.parametrize("rows", [0, 4])
def test_a_block_without_features_still_knows_its_rows(rows):
    b = IdBlock.from_ragged({}, batch_size=rows)
    assert (len(b), b.batch_size, list(b.offsets.shape)) == (0, rows, [0, rows + 1])
    assert repr(b) == f"IdBlock(0 features, {rows} rows, 0 ids, cpu)"


def test_a_block_without_rows_keeps_its_features():
    b = IdBlock.from_ragged({"a": Ragged.from_lists([]), "b": torch.empty(0, 3, dtype=torch.int64)})
    assert (b.hotness, b.batch_size) == ((None, 3), 0)
    assert b["b"].to_list() == []
    assert list(b.matrix("b").shape) == [0, 3]
    assert IdBlock.from_kjt(*b.to_kjt()).names == ("a", "b")


def test_hotness_zero_is_a_feature_of_empty_rows():
    b = IdBlock.from_ragged({"a": torch.empty(2, 0, dtype=torch.int64)})
    assert b["a"].to_list() == [[], []]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 2, 1], "do not divide among 2 keys"),
        ([1, 1, 1, 2], "lengths sum to 5, but there are 4 values"),
        ([1, -1, 2, 2], "must not be negative, got -1"),
    ],
)
def test_keyed_jagged_parts_that_do_not_fit_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        IdBlock.from_kjt(["a", "b"], torch.arange(4), torch.tensor(lengths))


def test_keyed_jagged_weights_travel():
    parts = block().to_kjt()
    assert list(parts._asdict()) == ["keys", "values", "lengths", "weights"]
    back = IdBlock.from_kjt(*parts)
    assert torch.equal(back.weights_of("tags"), block().weights_of("tags"))
    assert [back[name].to_list() for name in back] == [block()[name].to_list() for name in back]


def test_repr_shows_each_feature_and_stops_after_twelve():
    assert repr(block()).split("\n") == [
        "IdBlock(4 features, 3 rows, 13 ids, weighted, cpu)",
        "  user   1 per row",
        "  tags   ragged, mean 1",
        "  pair   2 per row",
        "  words  ragged, mean 0.3333",
    ]
    many = IdBlock.from_lists({f"f{n}": [1] for n in range(40)})
    assert len(repr(many).split("\n")) == 14
    assert repr(many).endswith("\n  … 28 more")


def test_equal_sees_ids_hotness_and_weights():
    assert block().equal(block())
    assert not block().equal(replace(block(), weights=None))
    assert not block().equal(replace(block(), values=block().values + 1))
    assert not IdBlock.from_lists({"a": [1]}).equal(IdBlock.from_lists({"a": [[1]]}))


def test_to_moves_all_tensors():
    moved = block().to("meta")
    assert {t.device.type for t in (moved.values, moved.offsets, moved.weights)} == {"meta"}
    assert moved.starts == block().starts
