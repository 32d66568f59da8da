from __future__ import annotations

import json

import pytest

from hybridrec.data.transforms import OPS, from_json
from tests.data.transforms.examples import EXAMPLES


@pytest.mark.parametrize("transform", EXAMPLES, ids=repr)
def test_a_transform_round_trips_through_json(transform):
    text = json.dumps(transform.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == transform


def test_every_op_is_an_example():
    assert {example.op for example in EXAMPLES} == set(OPS)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"op": "sqrt"}, ValueError, r"unknown transform 'sqrt'; ops are hash, modulo"),
        ({"n": 3}, ValueError, "an object with an 'op'"),
        ({"op": "modulo", "n": 3, "m": 1}, ValueError, "modulo has no m; its keys are n"),
        ({"op": "vocabulary", "values": ["a"], "_index": 1}, ValueError, "has no _index"),
        ({"op": "modulo"}, TypeError, "modulo: .*missing"),
    ],
)
def test_json_that_describes_no_transform_is_an_error_that_says_why(value, error, message):
    with pytest.raises(error, match=message):
        from_json(value)
