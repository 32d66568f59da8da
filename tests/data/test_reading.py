from __future__ import annotations

import numpy as np
import pytest

from hybridrec.data.effort import Effort
from hybridrec.data.reading import Cuts, Plan, Reading
from hybridrec.data.shuffle import Shuffle

READING = Reading(
    columns=["user"],
    chunk_rows=100,
    row_bytes=8.0,
    borders=lambda group: np.array([0, 100, 200]),
    open=lambda group, spread: iter(()),
    absent=lambda group: frozenset(),
    group_rows=200,
    lane_bytes=0,
)


def planned(shuffle: Shuffle | None = None, threads: int = 2, memory: int = 1 << 20) -> Plan:
    return READING.plan(Cuts(batch_size=10), shuffle, Effort(threads, 3, memory), lambda group: 150)


def test_a_plan_is_the_reading_and_what_is_of_one_epoch():
    plan = planned()
    assert (plan.reading, plan.cuts, plan.last_row(0)) == (READING, Cuts(10), 150)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_in_order_a_group_for_each_thread_is_planned_ahead_whatever_the_ceiling(threads):
    assert {planned(None, threads, memory).ahead_rows for memory in (1, 1 << 40)} == {threads * 200 + 3 * 10}


@pytest.mark.parametrize(("memory", "rows"), [(1, 2 * 50 + 10), (8 * 5000, 5000)])
def test_shuffled_two_windows_are_planned_ahead_or_what_memory_holds(memory, rows):
    assert planned(Shuffle(0, rows=50), memory=memory).ahead_rows == rows
