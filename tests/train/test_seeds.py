"""Generators: seeded together, kept and put back."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from hybridrec.train.checkpoint.tree import decode, encode
from hybridrec.train.seeds import determinism, rng_line, rng_state, seed_everything, set_rng_line, set_rng_state


def draws() -> tuple:
    return torch.rand(2).tolist(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()  # noqa: NPY002


def test_a_seed_sets_all_generators():
    seed_everything(5)
    first = draws()
    assert draws() != first
    seed_everything(5)
    assert draws() == first


def test_the_state_goes_through_a_checkpoint_and_back():
    seed_everything(1)
    random.gauss(0, 1)  # keeps half of its work for the next call
    np.random.randn()  # noqa: NPY002
    tensors: dict[str, torch.Tensor] = {}
    saved = json.dumps(encode(rng_state(), tensors))
    wanted = draws()
    draws()
    set_rng_state(decode(json.loads(saved), tensors))
    assert draws() == wanted


@pytest.mark.parametrize("half", [True, False])  # whether a generator has kept half of its work for the next call
def test_the_state_goes_through_a_line_of_numbers_and_back(half):
    seed_everything(1)
    if half:
        random.gauss(0, 1)
        np.random.randn()  # noqa: NPY002
    kept, wanted = rng_line(), draws()
    random.gauss(0, 1)
    assert draws() != wanted
    assert set_rng_line(kept)
    assert draws() == wanted


def test_a_line_of_other_generators_is_not_taken():
    seed_everything(1)
    kept = rng_line()
    assert not set_rng_line(kept[:-1])
    assert torch.equal(rng_line(), kept)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "a"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match="it must be a whole number from 0 on"):
        seed_everything(seed)


def test_determinism_ends_where_it_ends():
    with determinism(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(KeyError), determinism(True):
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
