"""Accords: decisions of all ranks at steps that all of them know."""

from __future__ import annotations

import signal

import torch

from hybridrec.parallel.ranks import Ranks
from hybridrec.train.accord import MOST, Accord, Wishes, steps_until_next


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slower(Ranks):
    """Another rank beside this one, with wishes of its own."""

    def __init__(self, *numbers: float, reason: str | None = None) -> None:
        super().__init__(0, 2)
        self.numbers, self.reason, self.asked = torch.tensor(numbers, dtype=torch.float64), reason, 0

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return torch.maximum(values, self.numbers)

    def all_told(self, value: object) -> list[object]:
        return [value, self.reason]


def test_ranks_are_asked_about_once_a_second_of_the_slowest():
    clock, ranks = Clock(), Slower(0, 0, 0, 0)
    accord = Accord(ranks, clock)
    for _ in range(1000):
        clock.now += 0.01
        accord.reach(Wishes)
    assert 10 <= ranks.asked <= 13


def test_between_accords_nobody_wishes_anything():
    clock = Clock()
    accord = Accord(Slower(0, 0, 0, 0.1), clock)
    clock.now = 0.1
    accord.reach(Wishes)
    assert [accord.reach(lambda: Wishes(save=True)).save for _ in range(10)] == [False] * 9 + [True]


def test_what_one_rank_wishes_all_do():
    found = Accord(Slower(signal.SIGTERM, 1, 1, 0, reason="enough")).reach(Wishes)
    assert found == Wishes(signal.SIGTERM, "enough", True)


def test_an_accord_can_be_had_at_once():
    accord = Accord(Slower(0, 0, 0, 1e-9))
    accord.reach(Wishes)
    assert not accord.reach(lambda: Wishes(save=True)).save
    assert accord.reach(lambda: Wishes(save=True), now=True).save


def test_steps_until_the_next_accord_have_bounds():
    assert steps_until_next(1, 1e-9) == MOST
    assert steps_until_next(1, 1e9) == 1
