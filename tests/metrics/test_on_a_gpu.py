"""Metrics of GPU tensors: the same numbers, no waiting in update, faults told at compute."""

from __future__ import annotations

import math

import pytest
import torch

from hybridrec.metrics import GAUC, NAMES, MetricSet, make
from tests.metrics.samples import Sample, clicks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ALL = tuple("gauc:user" if name == "gauc" else name for name in NAMES)


def moved(sample: Sample) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if column is None else column.cuda() for column in sample.arguments())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_number_is_that_of_the_cpu_and_devices_mix(name, weighted):
    sample = clicks(5000, base=-1.0, weighted=weighted)
    here, there, mixed = make(name), make(name), make(name)
    here.update(*sample.arguments())
    here.update(*sample.arguments())
    for _ in range(2):
        there.update(*moved(sample))
    assert there.compute() == pytest.approx(here.compute(), rel=1e-10)
    mixed.update(*sample.arguments())
    mixed.update(*moved(sample))
    assert mixed.compute() == pytest.approx(here.compute(), rel=1e-10)
    resumed = make(name)
    resumed.load_state_dict(there.state_dict())
    resumed.merge(here)
    assert math.isfinite(resumed.compute())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_update_never_waits_for_the_device():
    sample = clicks(8192, weighted=True)
    scores, labels, weights, groups = moved(sample)
    metrics = MetricSet("click", ALL)
    metrics.update(scores, labels, weights, {"user": groups})
    torch.cuda.set_sync_debug_mode("error")
    try:
        metrics.update(scores, labels, weights, {"user": groups})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert math.isfinite(metrics.compute()["auc"])


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_told_at_compute_and_gone_after_reset(name):
    sample = clicks(100, base=-1.0)
    metric = make(name)
    metric.update(*moved(sample))
    sample.scores[7] = math.nan
    metric.update(*moved(sample))
    for ask in (metric.compute, metric.state_dict, lambda: make(name).merge(metric)):
        with pytest.raises(ValueError, match="a score is nan"):
            ask()
    metric.reset()
    metric.update(*moved(clicks(100, base=-1.0)))
    assert math.isfinite(metric.compute())


def test_a_full_gauc_sorts_and_samples_on_the_device():
    sample = clicks(20_000, base=-1.0)
    here, there = GAUC(entries=2000), GAUC(entries=2000)
    for rows in torch.arange(20_000).split(500):
        part = sample.part(rows)
        here.update(*part.arguments())
        there.update(*moved(part))
    a, b = here.summary(), there.summary()
    assert a.value == pytest.approx(b.value, rel=1e-12)
    assert (a.groups, a.one_class, a.share) == (b.groups, b.one_class, b.share)


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_mode_works_and_repeats_weighted_sums_to_the_bit(name):
    parts = [clicks(5000, seed=seed, base=-1.0, weighted=True) for seed in range(2)]
    torch.use_deterministic_algorithms(True)
    try:
        metrics = [make(name) for _ in range(2)]
        for metric in metrics:
            for part in parts:
                metric.update(*moved(part))
        assert metrics[0].compute() == metrics[1].compute()
        gauc = GAUC(entries=500)
        gauc.update(*moved(parts[0]))
        assert gauc.summary().share < 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_columns_of_two_devices_are_an_error():
    with pytest.raises(ValueError, match="labels are on cpu but scores are on cuda:0"):
        make("auc").update(torch.rand(3).cuda(), torch.zeros(3))


def test_a_copy_on_the_host_tells_faults_and_leaves_its_device():
    metrics, sample = MetricSet(metrics=ALL), clicks(5000, base=-1.0)
    scores, labels, weights, groups = moved(sample)
    assert scores is not None
    assert labels is not None
    assert groups is not None
    metrics.update(scores, labels, weights, {"user": groups})
    copy = metrics.on_host()
    assert copy.compute() == pytest.approx(metrics.compute(), rel=1e-10)
    assert {part.device.type for part in copy.state_dict().values()} == {"cpu"}
    metrics.update(scores + 2, labels, weights, {"user": groups})
    with pytest.raises(ValueError, match="scores must be probabilities"):
        metrics.on_host()
