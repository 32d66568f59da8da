"""The relay that adds latency between ranks."""

from __future__ import annotations

import pytest
import torch

from tests.parallel.pool import pool

TIMED = "tests.parallel.jobs.echo:timed"


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_what_ranks_send_through_the_relay_arrives_later_and_unchanged(world: int) -> None:
    delay = 0.03
    late = pool(world, delay)
    for size in (1, 300_000):
        found = late.run(TIMED, size=size, times=3)
        assert all(torch.equal(each["got"], torch.arange(float(world))) for each in found)
        for took in zip(*(each["seconds"] for each in found), strict=True):
            assert max(took) >= delay, "whoever comes last finds the messages of the others there"
    late.close()
