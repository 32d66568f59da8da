"""Ranks on cards order their streams, the host, and what they send each other: as a stand-in for a card sees it."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from tests.gpu import INTERPRETED, needs_gpu
from tests.ordering.card import Card
from tests.ordering.rank_runs import DIM, KINDS, MANY, RankRun, batch, begin, lists, many

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="kernels tell their addresses when interpreted")]

WAYS = pytest.mark.parametrize("nccl", [False, True], ids=["by the host", "by NCCL"])
TIMES = pytest.mark.parametrize("ahead", [0, 1], ids=["at the lookup", "ahead"])


@WAYS
@TIMES
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_rank_are_ordered_whose_table_is(
    card: Card, monkeypatch: pytest.MonkeyPatch, kind: str, ahead: int, nccl: bool
) -> None:
    go_through(card, monkeypatch, kind, ahead, nccl)
    card.check()


def go_through(card: Card, monkeypatch: pytest.MonkeyPatch, kind: str, ahead: int, nccl: bool) -> None:
    """The only rank goes the way of many."""
    begin(card, monkeypatch, nccl)
    run = RankRun([hr.Table("user", DIM, **KINDS[kind])], {"user": "row"})
    run.go_through([batch(number) for number in range(6)], ahead)


@pytest.mark.parametrize("prompt", [False, True], ids=["a slow card", "a prompt one"])
@WAYS
def test_steps_of_a_rank_with_tables_of_all_kinds_are_ordered_whose_ids_go_ahead(
    card: Card, monkeypatch: pytest.MonkeyPatch, nccl: bool, prompt: bool
) -> None:
    card.prompt = prompt
    begin(card, monkeypatch, nccl)
    run = RankRun(many(), MANY)
    run.go_through([lists(number) for number in range(6)], ahead=2)
    card.check()


# -- each wait is there for something -------------------------------------------------------------------------

WAITS = [
    "beside.py:on_host waits",
    "lookup.py:fly waits",
    "lookup.py:_take waits",
    "lookup.py:_take records",
    "lookup.py:arrive records",
    "lookup.py:answered waits",
    "lookup.py:land waits",
    "group.py:prepare waits",
    "group.py:_run_groups waits",
]


@pytest.mark.parametrize("wait", WAITS)
def test_it_is_seen_where_cards_send_and_there_is_no_longer_what(
    card: Card, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    card.left_out = {wait}
    go_through(card, monkeypatch, "fixed", ahead=1, nccl=True)
    assert wait in card.waits
    assert card.findings


@pytest.mark.parametrize("wait", ["tier_class.py:check waits", "tiers.py:slots waits"])
def test_it_is_seen_where_rows_come_by_the_ids_of_ranks_and_there_is_no_longer_what(
    card: Card, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    card.left_out = {wait}
    go_through(card, monkeypatch, "tiered", ahead=1, nccl=True)
    assert wait in card.waits
    assert card.findings


def test_it_is_seen_where_the_host_sends_what_it_has_not_waited_for(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.left_out = {"transport.py:send waits"}
    go_through(card, monkeypatch, "fixed", ahead=0, nccl=False)
    assert card.left_out <= card.waits
    assert card.findings
