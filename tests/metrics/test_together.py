"""Metrics over ranks: those of all rows, the same on each rank. Ranks are threads here, that wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.metrics import GAUC, CalibrationCurve, MetricSet
from tests.patience import PATIENCE

EVERY = ("auc", "exact_auc", "auc_pr", "gauc:user", "logloss", "ne", "calibration", "ece", "accuracy", "rmse")


class Threads:
    """What ranks say to each other, for threads of one process."""

    def __init__(self, world: int) -> None:
        self.here, self.parts = threading.local(), [None] * world
        self.place = threading.Barrier(world, timeout=PATIENCE)

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        self.parts[self.here.rank] = values.clone()
        self.place.wait()
        found = list(self.parts)
        self.place.wait()
        return found

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values.copy_(torch.stack(self.gathered(values)).sum(0))


def on_ranks(world: int, work: Callable[[int, Threads], Any]) -> list[Any]:
    ranks = Threads(world)

    def run(rank: int) -> Any:
        ranks.here.rank = rank
        return work(rank, ranks)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def rows_of(count: int, seed: int, weighted: bool) -> tuple[Any, ...]:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=draw)
    labels = (torch.rand(count, generator=draw) < scores).float()
    weights = torch.randint(0, 4, (count,), generator=draw).float() if weighted else None
    return scores, labels, weights, {"user": torch.randint(0, 5, (count,), generator=draw)}


def part_of(rows: tuple[Any, ...], begin: int, end: int) -> tuple[Any, ...]:
    scores, labels, weights, groups = rows
    cut = None if weights is None else weights[begin:end]
    return scores[begin:end], labels[begin:end], cut, {name: each[begin:end] for name, each in groups.items()}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 99), st.booleans())
def test_parts_on_ranks_give_the_metrics_of_all_rows_on_every_rank(sizes, seed, weighted):
    rows = rows_of(sum(sizes), seed, weighted)
    whole = MetricSet(metrics=EVERY)
    whole.update(*rows)

    def work(rank: int, ranks: Threads) -> dict[str, float]:
        mine = MetricSet(metrics=EVERY)
        begin = sum(sizes[:rank])
        mine.update(*part_of(rows, begin, begin + sizes[rank]))
        return mine.together(ranks).compute()

    found = on_ranks(len(sizes), work)
    wanted = whole.compute()
    assert all(list(each.items()) == list(found[0].items()) or str(each) == str(found[0]) for each in found)
    for name, value in wanted.items():
        assert found[0][name] == pytest.approx(value, abs=1e-12, nan_ok=True), name


def test_a_metric_counts_on_after_it_was_taken_together():
    def work(rank: int, ranks: Threads) -> tuple[float, float]:
        mine = MetricSet(metrics=("accuracy",))
        mine.update(torch.tensor([0.9]), torch.tensor([float(rank)]))
        both = mine.together(ranks).compute()["accuracy"]
        return both, mine.compute()["accuracy"]

    assert on_ranks(2, work) == [(0.5, 0.0), (0.5, 1.0)]


def test_ranks_whose_gauc_is_at_different_stages_agree_on_the_later_one():
    def work(rank: int, ranks: Threads) -> float:
        mine = GAUC(entries=8)
        scores, labels, _, groups = rows_of(100 if rank else 2, rank, False)
        mine.update(scores, labels, groups=groups["user"])
        return mine.together(ranks).compute()

    one, other = on_ranks(2, work)
    assert str(one) == str(other)


def test_a_rank_without_rows_has_the_curve_of_the_others():
    def work(rank: int, ranks: Threads) -> list[float]:
        curve = CalibrationCurve(points=2)
        if rank:
            curve.update(torch.tensor([0.125, 0.25, 0.5, 0.75]), torch.tensor([0.0, 0.0, 1.0, 0.0]))
        return curve.together(ranks).curve().predicted

    assert on_ranks(2, work) == [[0.1875, 0.625]] * 2
