"""What a table on servers is: values that no table has are refused by name, and so are keys that nobody knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridrec import _native
from hybridrec.embedding import Constant, Normal, Uniform
from hybridrec.embedding.initial import initial_rows
from hybridrec.server.declaration import Declaration, Rule
from hybridrec.server.protocol import Refusal

GOOD = Declaration("user", 8, 100).to_json()
WRONG = {
    "dim": [0, -1, 1.5, "8", True, None, 2**40],
    "capacity": [0, 2**63, "many"],
    "seed": [2**64, 0.5],
    "dtype": ["float64", 32, None],
    "init": ["zeros"],
    "scale": [float("nan"), "big"],
    "eviction": ["random", None],
    "ttl": [-1, 2**32],
    "probability": [0, 1.5, "half"],
    "min_count": [-1, 2**16],
    "rows": [99, "100", 100.0, True],
    "name": ["", 3, "x" * 2000],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_value_that_no_table_has_is_refused(key, value):
    with pytest.raises(Refusal, match=key if key != "name" else "its name must be") as caught:
        Declaration.of({**GOOD, key: value})
    assert caught.value.code == "malformed"


def test_a_declaration_comes_back_as_it_was_sent():
    assert Declaration.of(GOOD) == Declaration("user", 8, 100)


def test_a_fixed_table_has_neither_eviction_nor_admission():
    good = Declaration("item", 8, 100, eviction="none", rows=100)
    assert Declaration.of(good.to_json()) == good
    for key, value in {"eviction": "lru", "probability": 0.5, "min_count": 2}.items():
        with pytest.raises(Refusal, match="rows is 100; it must be None where a table has eviction or admission"):
            Declaration.of({**good.to_json(), key: value})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("init", [Uniform(0.5), Normal(0.1), Constant(0.25)], ids=lambda init: init.kind)
def test_initial_rows_are_those_of_the_reference(dtype, init):
    declared = Declaration("item", 5, 100, seed=7, dtype=dtype, init=init.kind, scale=init.size)
    ids = np.array([0, 3, 99, 2**40, -1])
    kind = getattr(torch, dtype)
    wanted = initial_rows(init, _native.table_key("item", 7), torch.from_numpy(ids), 5, kind)
    assert torch.from_numpy(declared.initial(ids)).view(kind).equal(wanted)


def test_keys_that_are_unknown_or_missing_are_refused():
    with pytest.raises(Refusal, match=r"is declared with .*'colour'.*; it must have name, dim, capacity"):
        Declaration.of({**GOOD, "colour": 1})
    with pytest.raises(Refusal, match="it must have name, dim"):
        Declaration.of({key: value for key, value in GOOD.items() if key != "seed"})


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "lion", "state": []},
        {"kind": "sgd"},
        {"kind": "sgd", "state": [["sum", False]]},
        {"kind": "sgd", "state": [["sum", False, float("inf")]]},
        {"kind": "sgd", "state": [["a", False, 0]] * 3},
        [],
    ],
)
def test_a_rule_that_is_none_is_refused(given):
    with pytest.raises(Refusal):
        Rule.of(given)
