"""Trees as JSON and tensors."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrec.train.checkpoint.tree import decode, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers(0, 255)).map(lambda values: torch.tensor(values, dtype=torch.uint8))
)
KEYS = st.text(max_size=3) | st.integers() | st.booleans() | st.sampled_from(["$", "a/b", "a"])
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def through(tree: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    text = json.dumps(encode(tree, tensors), allow_nan=False)
    return decode(json.loads(text), tensors)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(TREES)
def test_a_tree_comes_back_as_it_was(tree):
    assert same(through(tree), tree)


@given(TREES)
def test_two_trees_that_differ_come_back_different(tree):
    assert not same(through([tree, 1]), [tree, 2])


def test_types_that_stand_for_plain_ones_come_back_plain():
    assert same(
        through(OrderedDict(a=np.float32(0.5), b=np.int64(7), c=torch.Size([2]))), {"a": 0.5, "b": 7, "c": (2,)}
    )


def test_a_counter_stays_one():
    found = through(Counter({3: 2, 7: 1}))
    assert type(found) is Counter
    assert found == Counter({3: 2, 7: 1})


def test_an_array_stays_one():
    found = through({"keys": np.arange(3, dtype=np.uint32)})["keys"]
    assert type(found) is np.ndarray
    assert (found.dtype, found.tolist()) == (np.uint32, [0, 1, 2])


def test_tensors_are_copied_and_contiguous():
    source, tensors = torch.arange(6.0).view(2, 3), {}
    encode({"a": source.t()}, tensors)
    source.zero_()
    assert tensors["a"].is_contiguous()
    assert tensors["a"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(("value", "name"), [({1, 2}, "set"), (object(), "object"), (b"a", "bytes"), (max, "builtin")])
def test_what_has_no_form_is_named_with_its_place(value, name):
    with pytest.raises(TypeError, match=rf"data/0/x is a {name}.*, which a checkpoint has no form for; put in tensors"):
        encode({"data": [{"x": value}]}, {})


def test_sparse_tensors_are_refused():
    with pytest.raises(TypeError, match=r"a is a tensor of layout torch.sparse_coo; make it dense"):
        encode({"a": torch.eye(2).to_sparse()}, {})


def test_a_mark_of_a_later_version_is_an_error():
    with pytest.raises(ValueError, match="marked 'complex', which this version does not know"):
        decode({"$": "complex", "value": "1j"}, {})
