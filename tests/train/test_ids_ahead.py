"""Batches whose ids are sent a step before they come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hybridrec.train.ids_ahead import IdsAhead
from hybridrec.train.placed import Placed
from hybridrec.types import Batch, IdBlock


def batch(number: int) -> Batch:
    return Batch(ids=IdBlock.from_lists({"user": [number]}), dense=torch.zeros(1, 0))


class Source:
    """Batches 0, 1, … with a position, and an error in place of one of them."""

    def __init__(self, count: int, broken: int | None = None) -> None:
        self.given, self.closed = 0, False
        self._count, self._broken = count, broken

    def __iter__(self) -> Iterator[Batch]:
        try:
            while self.given < self._count:
                if self.given == self._broken:
                    raise ValueError("broken")
                self.given += 1
                yield batch(self.given - 1)
        finally:
            self.closed = True

    def position(self) -> int:
        return self.given


def number_of(placed: Placed) -> int:
    return int(placed.batch.ids.values[0])


def ahead(source: Source, steps: int = 1) -> tuple[IdsAhead, list[tuple[int, float]]]:
    told: list[tuple[int, float]] = []

    def prepare(each: Batch, weight: float) -> None:
        told.append((int(each.ids.values[0]), weight))

    return IdsAhead(source, lambda each: Placed(each, 0.5), prepare, told.clear, source.position, steps), told


def test_a_batch_is_prepared_a_step_before_it_comes_and_once():
    batches, told = ahead(Source(3))
    seen = []
    for placed in batches:
        seen.append((number_of(placed), [number for number, _ in told]))
    assert seen == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]
    assert {weight for _, weight in told} == {0.5}


def test_the_state_is_that_after_the_batch_that_was_taken():
    batches, _ = ahead(Source(3))
    assert batches.state == 0
    assert [(number_of(placed), batches.state) for placed in batches] == [(0, 1), (1, 2), (2, 3)]
    assert list(batches) == []


def test_an_error_comes_where_its_batch_would_have_come():
    batches, told = ahead(Source(3, broken=1))
    assert number_of(next(batches)) == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            next(batches)
    assert [number for number, _ in told] == [0]


def test_close_ends_the_source():
    source = Source(3)
    batches, _ = ahead(source)
    next(batches)
    batches.close()
    assert source.closed


def test_what_was_prepared_and_does_not_come_is_forgotten():
    batches, told = ahead(Source(3))
    next(batches)
    assert len(told) == 2
    batches.close()
    assert told == []


def test_an_empty_source_has_no_batches():
    assert list(ahead(Source(0))[0]) == []


def test_ids_may_go_several_steps_ahead_and_the_state_is_that_of_the_batch_taken():
    source = Source(5, broken=4)
    batches, told = ahead(source, steps=3)
    assert number_of(next(batches)) == 0
    assert ([number for number, _ in told], batches.state, source.given) == ([0, 1, 2, 3], 1, 4)
    assert [number_of(next(batches)) for _ in range(3)] == [1, 2, 3]
    assert batches.state == 4
    with pytest.raises(ValueError, match="broken"):
        next(batches)
