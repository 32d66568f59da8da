from __future__ import annotations

import json

import pytest
import torch

from hybridrec.embedding import LFU, TTL, Constant, MinCount, MultiHash, Normal, Probability, Uniform
from hybridrec.models.options import decode, encode


@pytest.mark.parametrize(
    "value",
    [
        *(LFU(), TTL(5), MinCount(3), Probability(0.5), MultiHash(2, 10), Uniform(0.1), Normal(0.2), Constant(1.0)),
        *(torch.float16, torch.int8, "lfu", 7, None),
    ],
    ids=str,
)
def test_an_option_comes_back_from_json(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_containers_are_encoded_in_depth():
    assert encode({"a": (1, MinCount(2))}) == {"a": [1, {"kind": "MinCount", "k": 2}]}


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="has no form in JSON"):
        encode(object())
    with pytest.raises(ValueError, match="'Maybe' is not one of"):
        decode({"kind": "Maybe"})
