from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridrec.data import xxh64
from hybridrec.embedding import Constant, Normal, Uniform
from hybridrec.embedding.initial import initial_rows
from hybridrec.ops.philox import reference as philox

IDS = torch.tensor([0, 5, -1, 2**63 - 1, -(2**63)])


@pytest.mark.parametrize(("init", "draw"), [(Uniform(0.1), philox.uniform), (Normal(0.1), philox.normal)])
def test_rows_are_those_of_the_reference(init, draw):
    key = xxh64("item", 7)
    assert np.array_equal(initial_rows(init, key, IDS, 6, torch.float32).numpy(), draw(key, IDS.numpy(), 6, 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_rows_are_rounded_to_the_nearest(dtype):
    whole, half = (initial_rows(Uniform(), 1, IDS, 4, kind) for kind in (torch.float32, dtype))
    assert torch.equal(half, whole.to(dtype))


def test_constant_rows_hold_their_value():
    assert initial_rows(Constant(0.5), 1, IDS, 3, torch.float16).tolist() == [[0.5] * 3] * 5


@pytest.mark.parametrize("made", [lambda: Uniform(-0.1), lambda: Normal(-1), lambda: Uniform(float("nan"))])
def test_a_width_that_is_negative_or_not_finite_is_refused(made):
    with pytest.raises(ValueError, match=r"(Uniform|Normal): (scale|std) is"):
        made()


def test_equal_values_are_equal_and_kinds_differ():
    assert Uniform(1) == Uniform(1.0)
    assert Uniform(0.1) != Normal(0.1)
    assert len({Uniform(0.1), Uniform(0.1), Constant(0.1)}) == 2
