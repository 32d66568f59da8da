"""Streaming AUC against scikit-learn, and the bound of its error."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from sklearn.metrics import roc_auc_score

from hybridrec.metrics import AUC
from tests.metrics.samples import clicks, counted, samples


def oracle(sample) -> float:
    return float(roc_auc_score(sample.labels, sample.scores, sample_weight=sample.weights))


@given(samples(least=2))
def test_it_is_scikit_learns_within_its_own_error(sample):
    auc = counted("auc", sample)
    assume(not math.isnan(auc.compute()))
    assert abs(auc.compute() - oracle(sample)) <= auc.error() + 1e-12


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("base", "spread"), [(-6.0, 1.0), (-4.0, 1.5), (0.0, 1.0), (0.0, 3.0), (4.0, 1.5)])
def test_skewed_scores_are_within_a_ten_thousandth_for_sure_and_within_a_tenth_of_it_in_fact(base, spread, weighted):
    sample = clicks(100_000, base=base, spread=spread, weighted=weighted)
    auc = counted("auc", sample)
    assert auc.error() < 1e-4
    assert auc.compute() == pytest.approx(oracle(sample), abs=1e-5)


def test_scores_far_apart_are_exact():
    grid = torch.tensor([0.0, 1e-6, 1e-3, 0.2, 0.5, 0.7, 0.999, 1.0])
    torch.manual_seed(0)
    scores, labels = grid[torch.randint(0, 8, (1000,))], torch.randint(0, 2, (1000,))
    auc = AUC()
    auc.update(scores, labels)
    assert auc.compute() == pytest.approx(roc_auc_score(labels, scores), abs=1e-14)


def test_the_first_steps_of_a_model_that_knows_nothing_keep_their_bound():
    sample = clicks(20_000, base=0.0, spread=0.01)
    auc = counted("auc", sample)
    assert abs(auc.compute() - oracle(sample)) < 1e-4
    assert auc.error() < 2e-2


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_alone_is_nan(label):
    auc = AUC()
    auc.update(torch.rand(10), torch.full((10,), label))
    assert math.isnan(auc.compute())
    assert math.isnan(auc.error())


def test_a_class_of_weight_zero_is_absent():
    auc = AUC()
    auc.update(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert math.isnan(auc.compute())
