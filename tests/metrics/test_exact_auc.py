"""Exact AUC is scikit-learn's to the last digits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from sklearn.metrics import roc_auc_score

from hybridrec.metrics import ExactAUC, exact_auc
from tests.metrics.samples import clicks, counted, samples


@given(samples(least=2))
def test_it_is_scikit_learns(sample):
    auc = counted("exact_auc", sample)
    assume(not math.isnan(auc.compute()))
    wanted = roc_auc_score(sample.labels, sample.scores, sample_weight=sample.weights)
    assert auc.compute() == pytest.approx(wanted, abs=1e-13)
    assert exact_auc(sample.scores, sample.labels, sample.weights) == pytest.approx(wanted, abs=1e-13)


def test_scores_that_differ_in_the_last_bit_are_no_tie():
    scores = torch.tensor([0.3, 0.3])
    scores[1] = torch.nextafter(scores[1], torch.tensor(1.0))
    auc = ExactAUC()
    auc.update(scores, torch.tensor([0, 1]))
    assert auc.compute() == 1


def test_some_updates_may_have_weights_and_some_none():
    parts = [clicks(300), clicks(300, seed=1, weighted=True), clicks(300, seed=2)]
    auc = counted("exact_auc", *parts)
    weights = torch.cat([p.weights if p.weights is not None else torch.ones(300) for p in parts])
    scores, labels = (torch.cat([getattr(p, c) for p in parts]) for c in ("scores", "labels"))
    assert auc.compute() == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights), abs=1e-13)


def test_it_keeps_four_bytes_a_row():
    state = counted("exact_auc", clicks(1000), clicks(1000)).state_dict()
    assert sum(tensor.nbytes for tensor in state.values()) == 4 * 2000


def test_the_function_takes_logits_and_float64():
    torch.manual_seed(0)
    logits, labels = torch.randn(500).double() * 1e-9, torch.randint(0, 2, (500,))
    assert exact_auc(logits, labels) == pytest.approx(roc_auc_score(labels, logits), abs=1e-13)
    assert math.isnan(exact_auc(logits, torch.zeros(500)))
    assert math.isnan(exact_auc(logits[:0], labels[:0]))


def test_the_function_refuses_what_it_cannot_rank():
    ok = torch.tensor([0.5, -3.0])
    with pytest.raises(ValueError, match="a score is nan: scores must be finite"):
        exact_auc(torch.tensor([0.5, math.nan]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"a label is 2.0: labels must be 0 or 1"):
        exact_auc(ok, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"a weight is -1.0"):
        exact_auc(ok, torch.tensor([0, 1]), torch.tensor([1.0, -1.0]))
