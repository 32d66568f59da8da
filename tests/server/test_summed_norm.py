"""The norm of gradients that no trainer has all of: that of their sum, however ids are spread over trainers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.server.summed_norm import added_up, squares
from tests.patience import PATIENCE

DIMS = (2, 5)  # of tables


class Here:
    """What came."""

    def __init__(self, found: torch.Tensor) -> None:
        self._found = found

    def wait(self) -> torch.Tensor:
        return self._found


class Threads:
    """An exchange between threads."""

    def __init__(self, world: int) -> None:
        self.world, self._boxes, self._meet = world, [None] * world, threading.Barrier(world, timeout=PATIENCE)

    def of(self, rank: int) -> Any:
        def vectors(message: torch.Tensor, to: list[int], of: list[int], kind: str) -> Here:
            self._boxes[rank] = message.split(to)
            self._meet.wait()
            mine = [box[rank] for box in self._boxes]
            self._meet.wait()
            assert [len(part) for part in mine] == of
            return Here(torch.cat(mine))

        return type("Exchange", (), {"world": self.world, "vectors": staticmethod(vectors)})


def gradients(seed: int, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Distinct ids of each table, with whole numbers that add up exactly."""
    drawn = np.random.default_rng(seed)
    ids = [np.unique(drawn.integers(-most, most, drawn.integers(0, 12))) for _ in DIMS]
    return [
        (each, drawn.integers(-8, 9, (len(each), dim)).astype(np.float32)) for each, dim in zip(ids, DIMS, strict=True)
    ]


@given(seed=st.integers(0, 2**31), world=st.integers(1, 4), most=st.sampled_from([3, 2**62]))
def test_the_squares_of_all_trainers_are_those_of_the_sum(seed, world, most):
    each = [gradients(seed + rank, most) for rank in range(world)]
    exchange = Threads(world)
    with ThreadPoolExecutor(world) as trainers:
        found = list(trainers.map(lambda rank: squares(each[rank], exchange.of(rank)), range(world)))
    for table in range(len(DIMS)):
        _, sums = added_up([mine[table] for mine in each])
        assert sum(shares[table] for shares in found) == np.square(sums, dtype=np.float64).sum()


def test_a_gradient_that_is_not_finite_is_seen():
    with np.errstate(invalid="ignore"):
        [found] = squares([(np.array([1]), np.full((1, 2), np.inf, np.float32))], Threads(1).of(0))
    assert found == pytest.approx(np.inf)
