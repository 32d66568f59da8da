"""RMSE is scikit-learn's, of any finite numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import root_mean_squared_error

from hybridrec.metrics import RMSE

number = st.floats(-1000, 1000, width=32)


@given(st.lists(st.tuples(number, number, st.sampled_from([0.5, 1.0, 3.0])), min_size=1))
def test_it_is_scikit_learns(rows):
    scores, labels, weights = torch.tensor(rows).double().T
    rmse = RMSE()
    rmse.update(scores, labels, weights)
    assert rmse.compute() == pytest.approx(root_mean_squared_error(labels, scores, sample_weight=weights), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(bad):
    odd, even = torch.tensor([0.0, bad]), torch.tensor([-7.0, 3.0])
    with pytest.raises(ValueError, match=f"a score is {bad}: scores must be finite numbers"):
        RMSE().update(odd, even)
    with pytest.raises(ValueError, match=f"a label is {bad}: labels must be finite numbers"):
        RMSE().update(even, odd)
