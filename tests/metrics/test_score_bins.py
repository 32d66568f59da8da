"""Bins of probabilities: ordered, narrow, and of every float32."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.metrics.score_bins import BINS, bin_edges, score_bin


@given(st.lists(st.floats(0, 1, width=32), min_size=2))
def test_bins_never_fall_as_scores_rise(scores):
    bins = score_bin(torch.tensor(sorted(scores)))
    assert bool((bins.diff() >= 0).all())
    assert 0 <= int(bins.min()) <= int(bins.max()) < BINS


def test_bins_hold_the_scores_between_their_edges():
    edges = bin_edges()
    assert len(edges) == BINS + 1
    middle = ((edges[1:] + edges[:-1]) / 2).float()
    told_apart = (middle > 0) & (middle < 0.999)  # closer to 1 a bin is finer than float32
    assert torch.equal(score_bin(middle)[told_apart], torch.arange(BINS)[told_apart])
    assert bool((edges.diff() >= 0).all())


def test_bins_are_narrow_in_logits_from_one_in_a_million_up():
    edges = bin_edges()
    inner = edges[(edges > 1e-6) & (edges < 1 - 1e-6)]
    widths = torch.logit(inner).diff()
    assert float(widths.max()) < 1 / 1023
    assert float(widths[widths > 0].min()) > 1 / 4097


def test_the_ends_of_the_range_have_bins():
    tiny = [0.0, -0.0, 1e-45, 2**-26]
    assert score_bin(torch.tensor(tiny)).tolist() == [0] * 4
    assert score_bin(torch.tensor([1.0])).item() == BINS - 1
    assert score_bin(torch.tensor([1 - 2**-24])).item() < BINS - 1


def test_what_is_no_probability_gets_some_bin_all_the_same():
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -3.0, 7.0, 1e38])
    bins = score_bin(odd)
    assert 0 <= int(bins.min()) <= int(bins.max()) < BINS
