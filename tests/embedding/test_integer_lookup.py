"""Vocabularies that are learned as ids come, beside a plain dict."""

from __future__ import annotations

import copy
import io
import pickle
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrec import IdBlock, IntegerLookup, Ragged

EXTREMES = [0, -1, -(2**63), 2**63 - 1]


class Oracle:
    """The same as a dict."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.numbers: dict[int, int] = {}
        self.counts = [0]

    def __call__(self, ids: list[int], learn: bool = True) -> list[int]:
        return [self._one(key, learn) for key in ids]

    def _one(self, key: int, learn: bool) -> int:
        if learn and key not in self.numbers and len(self.numbers) < self.max_tokens:
            self.numbers[key] = len(self.numbers) + 1
            self.counts.append(0)
        number = self.numbers.get(key, 0)
        self.counts[number] += learn
        return number


def fed(max_tokens: int, *ids: int) -> IntegerLookup:
    lookup = IntegerLookup(max_tokens)
    lookup(torch.tensor(ids, dtype=torch.int64))
    return lookup


def test_ids_are_numbered_as_they_appear_until_the_vocabulary_is_full():
    lookup = IntegerLookup(4)
    assert lookup(torch.tensor([12, 36, 1138, 42])).tolist() == [1, 2, 3, 4]
    assert lookup(torch.tensor([[12, 1138, 42], [42, 1000, 36]])).tolist() == [[1, 3, 4], [4, 0, 2]]
    assert lookup.vocabulary().tolist() == [12, 36, 1138, 42]
    assert lookup.counts().tolist() == [1, 2, 2, 2, 3]
    assert len(lookup) == 4


@pytest.mark.parametrize("key_max", [100, 200, 500, 1000])
@pytest.mark.parametrize("tokens", [100, 200, 500, 1000])
def test_it_is_a_dict(key_max, tokens):
    lookup, oracle = IntegerLookup(tokens), Oracle(tokens)
    draw = torch.Generator().manual_seed(key_max + tokens)
    for turn in range(6):
        ids = torch.randint(-key_max // 2, key_max - key_max // 2, (20, 15), generator=draw)
        lookup.train(turn != 3)
        assert lookup(ids).flatten().tolist() == oracle(ids.flatten().tolist(), learn=turn != 3)
    assert lookup.vocabulary().tolist() == list(oracle.numbers)
    assert lookup.counts().tolist() == oracle.counts
    assert len(lookup) == len(oracle.numbers) <= tokens


@given(
    batches=st.lists(st.lists(st.sampled_from(EXTREMES) | st.integers(-5, 5), max_size=20), max_size=4),
    tokens=st.integers(1, 8),
)
def test_every_number_is_an_id_like_others(batches, tokens):
    lookup, oracle = IntegerLookup(tokens), Oracle(tokens)
    for ids in batches:
        assert lookup(torch.tensor(ids, dtype=torch.int64)).tolist() == oracle(ids)
    assert lookup.vocabulary().tolist() == list(oracle.numbers)
    assert lookup.counts().tolist() == oracle.counts


def test_evaluation_learns_and_counts_nothing():
    lookup = fed(5, 7, 8).eval()
    assert lookup(torch.tensor([8, 9, 9])).tolist() == [2, 0, 0]
    assert (lookup.vocabulary().tolist(), lookup.counts().tolist()) == ([7, 8], [0, 1, 1])
    assert lookup.train()(torch.tensor([9])).tolist() == [3]


def test_tensors_of_any_shape_and_whole_type_go_in():
    lookup = fed(9, *range(10, 16))
    ids = torch.arange(10, 16)
    for given_ids in (ids.int(), ids.view(2, 3), ids.view(2, 3).T, ids[::2], ids[3], ids[:0].view(2, 0)):
        out = lookup(given_ids)
        assert out.dtype == torch.int64
        assert out.shape == given_ids.shape
        assert torch.equal(out, given_ids.long() - 9)


def test_lists_stay_lists():
    lookup = IntegerLookup(9)
    nested = [[[5, 6], []], [], [[6], [7, 5]]]
    out = lookup(Ragged.from_lists(nested))
    assert out.to_list() == [[[1, 2], []], [], [[2], [3, 1]]]
    assert lookup(Ragged.from_lists([[7], [8]])).to_list() == [[3], [4]]


def block() -> IdBlock:
    tags = {
        "user": torch.tensor([5, 6]),
        "tags": Ragged.from_lists([[9], [5, 6]]),
        "item": torch.tensor([[9, 1], [5, 1]]),
    }
    return IdBlock.from_ragged(tags, weights={"tags": torch.tensor([0.5, 1.5, 2.5])})


def test_the_features_of_a_block_share_the_vocabulary():
    given_ids = block()
    before = given_ids.values.clone()
    out = IntegerLookup(9)(given_ids)
    assert [out[name].to_list() for name in out] == [[[1], [2]], [[3], [1, 2]], [[3, 4], [1, 4]]]
    assert (out.names, out.hotness, out.starts) == (given_ids.names, given_ids.hotness, given_ids.starts)
    assert torch.equal(out.weights, given_ids.weights)  # pyright: ignore[reportArgumentType]  (there are some)
    assert torch.equal(given_ids.values, before)


def test_other_features_of_a_block_pass_as_they_are():
    lookup = IntegerLookup(9, features=["item", "user"])
    out = lookup(block())
    assert [out[name].to_list() for name in out] == [[[3], [4]], [[9], [5, 6]], [[1, 2], [3, 2]]]
    assert lookup.vocabulary().tolist() == [9, 1, 5, 6]
    with pytest.raises(KeyError, match="no feature 'item' in this block; it has user"):
        lookup(block().select(["user"]))


@pytest.mark.parametrize(
    "twin",
    [copy.deepcopy, lambda lookup: pickle.loads(pickle.dumps(lookup))],
    ids=["copied", "pickled"],
)
def test_a_copy_knows_the_same_and_learns_by_itself(twin):
    lookup = fed(3, 5, 6, 6).eval()
    other = twin(lookup)
    assert not other.training
    assert (other.vocabulary().tolist(), other.counts().tolist()) == ([5, 6], [0, 1, 2])
    other.train()(torch.tensor([7, 8]))
    assert (len(other), len(lookup)) == (3, 2)
    assert other.max_tokens == 3


def test_the_state_goes_through_a_checkpoint_without_pickle():
    model = torch.nn.ModuleDict({"lookup": fed(3, *EXTREMES)})
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    other = torch.nn.ModuleDict({"lookup": fed(5, 1, 2, 3, 4)})
    other.load_state_dict(torch.load(stream, weights_only=True))
    found = other["lookup"]
    assert isinstance(found, IntegerLookup)
    assert (found.vocabulary().tolist(), found.counts().tolist()) == (EXTREMES[:3], [1, 1, 1, 1])
    assert found(torch.tensor([2**63 - 1, 0])).tolist() == [4, 1]


def test_a_vocabulary_that_was_given_out_does_not_change():
    lookup = fed(3, 5)
    keys, counts = lookup.vocabulary(), lookup.counts()
    lookup(torch.tensor([6, 5]))
    assert (keys.tolist(), counts.tolist()) == ([5], [0, 1])
    keys.fill_(0)
    assert lookup.vocabulary().tolist() == [5, 6]


KEYS, COUNTS = torch.tensor([5, 6]), torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, 'Missing key(s) in state_dict: "vocabulary", "counts"'),
        ({"vocabulary": KEYS}, 'Missing key(s) in state_dict: "counts"'),
        ({"vocabulary": KEYS, "counts": COUNTS, "more": KEYS}, 'Unexpected key(s) in state_dict: "more"'),
        ({"vocabulary": KEYS, "counts": KEYS}, "2 ids need 3 counts, got 2"),
        ({"vocabulary": KEYS.float(), "counts": COUNTS}, "vocabulary must be int64 [n], got torch.float32 [2]"),
        ({"vocabulary": KEYS, "counts": [0, 1, 1]}, "counts must be int64 [n], got list"),
        ({"vocabulary": torch.tensor([5, 5]), "counts": COUNTS}, "token 5 is there twice"),
        (
            {"vocabulary": torch.arange(4), "counts": torch.zeros(5, dtype=torch.int64)},
            "4 tokens do not fit a vocabulary of 3; raise max_tokens",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused_and_change_nothing(state: dict[str, Tensor], message):
    lookup = fed(3, 8)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        lookup.load_state_dict(state)
    if "Unexpected" not in message:
        assert lookup.vocabulary().tolist() == [8]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_tokens": 0}, ValueError, "IntegerLookup: max_tokens is 0; it must be from 1 to 4294967294"),
        ({"max_tokens": -3}, ValueError, "max_tokens is -3"),
        ({"max_tokens": 2**32 - 1}, ValueError, "max_tokens is 4294967295"),
        ({"max_tokens": 2.5}, TypeError, "max_tokens is 2.5; it must be a whole number"),
        ({"max_tokens": 3, "features": "user"}, TypeError, "it must be a list of names: features=['user']"),
    ],
)
def test_vocabularies_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        IntegerLookup(**arguments)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([1.0]), TypeError, "ids must be int64 or int32, got torch.float32; convert them with .long()"),
        (torch.tensor([True]), TypeError, "got torch.bool"),
        ([1, 2], TypeError, "ids must be a Tensor, a Ragged or an IdBlock, got list"),
        (torch.tensor([1]).to("meta"), ValueError, "ids are on meta, but the vocabulary on cpu"),
        (Ragged.from_lists(["a", "b"]), TypeError, "ids are strings, but a vocabulary is of whole numbers"),
        (Ragged.from_lists([["a"], ["b"]]), TypeError, "ids are strings"),
        (Ragged.from_lists([[1.5]]), TypeError, "ids must be int64 or int32, got torch.float32"),
    ],
)
def test_ids_of_other_kinds_are_refused(ids, error, message):
    lookup = IntegerLookup(3)
    with pytest.raises(error, match=re.escape(message)):
        lookup(ids)
    assert len(lookup) == 0


def test_features_without_a_block_are_refused():
    with pytest.raises(TypeError, match=re.escape("features=['user'] is about an IdBlock, but a Tensor came")):
        IntegerLookup(3, features=["user"])(torch.tensor([1]))


def test_it_says_what_it_is():
    assert repr(fed(1_000_000, 5, 6)) == "IntegerLookup(max_tokens=1000000, 2 learned)"
    assert repr(IntegerLookup(4, features=["user"])) == "IntegerLookup(max_tokens=4, features=['user'], 0 learned)"
    assert bool(IntegerLookup(3))
    assert list(IntegerLookup(3).parameters()) == list(IntegerLookup(3).buffers()) == []
