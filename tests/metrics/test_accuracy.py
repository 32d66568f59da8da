"""Accuracy is scikit-learn's of (score > threshold)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from hybridrec.metrics import Accuracy
from tests.metrics.samples import samples


@given(samples(least=1), st.sampled_from([0.0, 0.125, 0.5, 0.75, 1.0]))
def test_it_is_scikit_learns(sample, threshold):
    assume(sample.weights is None or float(sample.weights.sum()) > 0)
    accuracy = Accuracy(threshold)
    accuracy.update(sample.scores, sample.labels, sample.weights)
    wanted = accuracy_score(sample.labels, sample.scores > threshold, sample_weight=sample.weights)
    assert accuracy.compute() == pytest.approx(wanted, rel=1e-6)


def test_a_score_at_the_threshold_counts_as_zero():
    accuracy = Accuracy()
    accuracy.update(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), torch.tensor([3.0, 1.0]))
    assert accuracy.compute() == 0.75


def test_other_thresholds_are_other_metrics():
    with pytest.raises(ValueError, match=r"cannot merge accuracy:0.2 into accuracy"):
        Accuracy().merge(Accuracy(0.2))
    with pytest.raises(ValueError, match=r"threshold is 1.5"):
        Accuracy(1.5)
