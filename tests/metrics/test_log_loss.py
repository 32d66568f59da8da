"""Log loss is scikit-learn's; normalised entropy divides it by that of the base rate."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from sklearn.metrics import log_loss

from hybridrec.metrics import LogLoss, NormalizedEntropy
from tests.metrics.samples import clicks, counted, samples


def oracle(sample, scores) -> float:
    return float(log_loss(sample.labels, scores, sample_weight=sample.weights, labels=[0, 1]))


@given(samples(least=1))
def test_log_loss_is_scikit_learns(sample):
    assume(sample.weights is None or float(sample.weights.sum()) > 0)
    loss = counted("logloss", sample).compute()
    assert loss == pytest.approx(oracle(sample, sample.scores.numpy()), rel=1e-5, abs=1e-6)  # theirs is in float32


def test_scores_in_float64_are_clipped_as_scikit_learn_clips_them():
    scores, labels = torch.tensor([0.0, 1.0, 0.3]).double(), torch.tensor([1, 0, 1])
    loss = LogLoss()
    loss.update(scores, labels)
    assert loss.compute() == pytest.approx(log_loss(labels, scores.numpy()), rel=1e-12)


def test_small_scores_keep_their_digits():
    loss = LogLoss()
    loss.update(torch.full((1000,), 1e-6), torch.zeros(1000))
    assert loss.compute() == pytest.approx(-math.log1p(-1e-6), rel=1e-6)  # the float32 next to 1e-6


@pytest.mark.parametrize("weighted", [False, True])
def test_normalised_entropy_is_the_ratio_to_the_constant_model(weighted):
    sample = clicks(5000, base=-2.0, weighted=weighted)
    weights = torch.ones(5000) if sample.weights is None else sample.weights
    rate = float((weights * sample.labels).double().sum() / weights.double().sum())
    constant = oracle(sample, torch.full((5000,), rate).double().numpy())
    wanted = oracle(sample, sample.scores.double().numpy()) / constant
    assert counted("ne", sample).compute() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_alone_has_a_log_loss_and_no_normalised_entropy(label):
    metrics = LogLoss(), NormalizedEntropy()
    for metric in metrics:
        metric.update(torch.full((5,), 0.5), torch.full((5,), label))
    assert metrics[0].compute() == pytest.approx(math.log(2))
    assert math.isnan(metrics[1].compute())
