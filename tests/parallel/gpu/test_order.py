"""Several ranks, each with a stand-in for a card in its process, order their streams and what they send each other."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import INTERPRETED, needs_gpu
from tests.parallel.pool import pool

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="kernels tell their addresses when interpreted")]

JOB = "tests.ordering.rank_runs:gone_through"


@pytest.mark.parametrize("nccl", [False, True], ids=["by the host", "by NCCL"])
@pytest.mark.parametrize("ahead", [0, 1], ids=["at the lookup", "ahead"])
def test_steps_with_tables_of_all_kinds_are_ordered_on_both_ranks_whose_ids_go(ahead: int, nccl: bool) -> None:
    check(ahead=ahead, nccl=nccl)


@pytest.mark.parametrize("scheme", ["column", "replicated"])
def test_steps_are_ordered_on_both_ranks_whose_table_is_placed_by(scheme: str) -> None:
    check(ahead=1, nccl=True, scheme=scheme)


def check(**run: Any) -> None:
    for found in pool(2).run(JOB, **run):
        assert found["accesses"], "nothing was done on the card"
        assert found["findings"] == []


@pytest.mark.parametrize("wait", ["lookup.py:_take records", "lookup.py:land waits"])
def test_it_is_seen_on_both_ranks_where_there_is_no_longer_what(wait: str) -> None:
    for found in pool(2).run(JOB, ahead=1, nccl=True, scheme="replicated", left_out=[wait]):
        assert wait in found["waits"]
        assert found["findings"]
