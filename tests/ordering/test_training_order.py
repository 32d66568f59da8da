"""Training on a card orders its streams, and the host: as a stand-in for the card sees it, which misses no wait."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import LRU, MinCount
from hybridrec.embedding.gpu import dynamic, lookup, tiers
from hybridrec.types import IdBlock
from tests.embedding.gpu.replayed import Run, scored
from tests.embedding.gpu.test_dynamic_graphs import batches, tables
from tests.gpu import INTERPRETED, needs_gpu
from tests.ordering.card import Card
from tests.ordering.runs import CACHE, DIM, ROWS, batch, placed, small, store, train  # noqa: F401 (placed is a fixture)

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="kernels tell their addresses when interpreted")]

KINDS = {
    "grow": {"capacity": 1000},
    "are full": {"capacity": 14, "eviction": LRU(), "admission": MinCount(2)},
}


@pytest.mark.parametrize("replays", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_with_tables_of_all_kinds_are_ordered_while_some(card: Card, kind: str, replays: bool) -> None:
    run, given = Run(tables(**KINDS[kind]), store, graphs=replays), batches(5)
    train(run, given[:3])
    run.evaluate(given[4])
    train(run, given[3:])
    run.learner.settle()
    card.check()
    assert not replays or (run.graphs.replays, run.graphs.refused) == (4, None)


def tiered(replays: bool, path: Path | None) -> Run:
    """Steps of a table in two tiers, with all that others may do in between."""
    run = small(replays, CACHE, path)
    table = run.group.stores["user"]
    train(run, [batch(number) for number in range(6)])
    run.evaluate(batch(7))
    held = table.capture()
    next(held.chunks(10))
    train(run, [batch(7), batch(8)])
    table.load(torch.arange(5), torch.zeros(5, DIM))
    train(run, [batch(2), batch(3)])
    run.learner.settle()
    assert len(list(held.chunks(10))) == ROWS // 10
    return run


@pytest.mark.parametrize("prompt", [False, True], ids=["a slow card", "a prompt one"])
@pytest.mark.parametrize("replays", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("in_files", [False, True], ids=["in memory of the host", "in files"])
def test_steps_are_ordered_whose_cold_rows_are(
    card: Card, tmp_path: Path, in_files: bool, replays: bool, prompt: bool
) -> None:  # fmt: skip
    card.prompt = prompt
    run = tiered(replays, tmp_path if in_files else None)
    assert run.group.tiers[0].figures().moved
    card.check()


@pytest.mark.parametrize("replays", [False, True], ids=["launched", "replayed"])
def test_a_capture_is_read_in_order_while_steps_go_on(card: Card, replays: bool) -> None:
    run = small(replays)
    table = run.group.stores["user"]
    train(run, [batch(number) for number in range(4)])
    held = table.capture()
    first = list(islice(held.chunks(10), 2))
    train(run, [batch(4), batch(5)])
    rest = list(held.chunks(10))
    run.learner.settle()
    assert len(first) + len(rest) == 6
    card.check()


TABLES: dict[str, Any] = {
    "fixed": {"rows": ROWS},
    "tiered": {"rows": ROWS, "cache": CACHE},
    "dynamic": {"capacity": 100},
}


@pytest.mark.parametrize("kind", TABLES)
def test_lookups_whose_gradients_nobody_wants_let_go_of_their_memory_in_order_of_tables_that_are(
    card: Card, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up(kind, monkeypatch)
    card.check()


def look_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, but without a backward pass, batches of which each has another shape; no shape is kept for long."""
    for keeps in (lookup, tiers, dynamic):
        monkeypatch.setattr(keeps, "MOST_LAYOUTS", 1)
    table = hr.Table("user", DIM, combiner="mean", **TABLES[kind])
    run = Run([table], store, graphs=False)
    for number in range(4):
        lists = IdBlock.from_lists({"user": [[number] * (number + 1), [number + 5]]})
        run.learner.outputs(run.learner.place(scored(lists, DIM)).batch)


# -- each wait is there for something -----------------------------------------------------------------------

WAITS = [
    "group.py:prepare waits",
    "group.py:_run_groups waits",
    "group.py:withdraw waits",
    "tiers.py:_admit waits",
    "tier_class.py:arrive waits",
    "tier_class.py:land records",
    "staged.py:put_back waits",
    "late_loss.py:__float__ waits",
]


@pytest.mark.parametrize("wait", WAITS)
def test_it_is_seen_where_there_is_no_longer_what(card: Card, tmp_path: Path, wait: str) -> None:
    card.left_out = {wait}
    tiered(replays=wait != "tier_class.py:land records", path=tmp_path)
    assert wait in card.waits
    assert card.findings


@pytest.mark.parametrize("wait", ["tiers.py:slots waits"])
def test_it_is_seen_where_rows_come_by_the_card_alone_and_there_is_no_longer_what(card: Card, wait: str) -> None:
    card.left_out = {wait}
    tiered(replays=True, path=None)
    assert wait in card.waits
    assert card.findings


@pytest.mark.parametrize("wait", ["transfer.py:to_host waits", "transfer.py:_emptied waits"])
def test_it_is_seen_where_captures_are_read_and_there_is_no_longer_what(card: Card, wait: str) -> None:
    card.left_out = {wait}
    run = small(replays=True)
    train(run, [batch(number) for number in range(4)])
    list(run.group.stores["user"].capture().chunks(10))
    assert wait in card.waits
    assert card.findings


def test_it_is_seen_where_memory_of_lookups_is_let_go_and_no_stream_is_recorded(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.left_out = {"group.py:prepare records"}
    look_up("fixed", monkeypatch)
    assert card.findings
