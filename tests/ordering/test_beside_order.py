"""What goes on beside training is ordered with it: tables on the host, batches that a thread brings, metrics."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.host import HostGroup
from hybridrec.metrics import MetricSet
from hybridrec.train import feed
from hybridrec.train.losses import make_loss
from hybridrec.train.step import Learner, train_step
from hybridrec.train.window import Window
from hybridrec.types import Batch, IdBlock
from tests.embedding.gpu.on_device import QUICK
from tests.embedding.gpu.replayed import Run, scored
from tests.gpu import INTERPRETED, needs_gpu
from tests.ordering.card import Card
from tests.ordering.runs import CACHE, THERE, batch, placed, small, store  # noqa: F401 (placed is a fixture)
from tests.ordering.threads import Started, Thread

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="kernels tell their addresses when interpreted")]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [hr.Table("item", 4, rows=20), hr.Table("user", 4, rows=20, where="host")]
        made = hr.EmbeddingCollection(tables, seed=3)
        here = {"user": made["user"]}
        there = {"item": store(made.tables["item"], 3)}
        made.device = THERE
        group = DeviceGroup(there, made.trainable, QUICK)
        made.adopt(MixedGroup(made.tables, group, HostGroup(here, made.trainable, THERE), THERE))
        self.embeddings = made

    def forward(self, given: Batch) -> torch.Tensor:
        return (self.embeddings(given).flat * given.dense).sum(1)


def learner_of(model: nn.Module) -> Learner:
    rows = hr.optim.RowWiseAdagrad(model, lr=0.125)
    return Learner(model, make_loss(lambda outputs, batch: outputs), rows=rows, device=THERE)


def mixed_batch(number: int) -> Batch:
    ids = {name: torch.tensor([number % 20, (number + at) % 20, 3]) for at, name in enumerate(("item", "user"))}
    return scored(IdBlock.from_ragged(ids), 8)


def train_mixed(card: Card) -> None:
    learner = learner_of(Mixed())
    coming = learner.place(mixed_batch(0))
    for number in range(1, 4):
        now, coming = coming, learner.place(mixed_batch(number))
        train_step(learner, [now])
    learner.settle()


def test_vectors_and_gradients_of_tables_on_the_host_travel_in_order(card: Card) -> None:
    train_mixed(card)
    card.check()


@pytest.mark.parametrize(
    "wait", ["roads.py:fetch waits", "roads.py:up waits", "roads.py:down waits", "roads.py:down records"]
)
def test_it_is_seen_where_they_travel_and_there_is_no_longer_what(card: Card, wait: str) -> None:
    card.left_out = {wait}
    train_mixed(card)
    assert card.findings


def train_fed(card: Card, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on batches that a thread has brought, all of them before the first is taken; it then brings one more."""
    count = 5
    threads = SimpleNamespace(Thread=lambda target, name, daemon: Started(card, target, name), Event=threading.Event)
    monkeypatch.setattr(feed, "threading", threads)
    monkeypatch.setattr(feed, "AHEAD", count + 1)
    coming = feed.Feed([batch(number) for number in range(count)], run.learner.place, THERE)
    for _ in range(count):
        train_step(run.learner, [next(coming)])
    coming._placed(batch(count))  # where the first have been
    run.learner.settle()


@pytest.mark.parametrize("cache", [None, CACHE], ids=["on the card", "in two tiers"])
@pytest.mark.parametrize("replays", [False, True], ids=["launched", "replayed"])
def test_steps_on_batches_that_a_thread_brings_are_ordered_whose_rows_are(
    card: Card, monkeypatch: pytest.MonkeyPatch, replays: bool, cache: int | None
) -> None:
    train_fed(card, small(replays, cache), monkeypatch)
    card.check()


@pytest.mark.parametrize("wait", ["feed.py:__next__ waits", "batch.py:record_stream records"])
def test_it_is_seen_where_a_thread_brings_batches_and_there_is_no_longer_what(
    card: Card, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    card.left_out = {wait}
    train_fed(card, small(replays="waits" in wait), monkeypatch)
    assert card.findings


def train_measured(card: Card, replays: bool) -> None:
    """Steps whose metrics another thread asks for, when the next ones have been launched."""
    run, thread = small(replays), Thread(card, "records")
    window = Window(run.learner, MetricSet(metrics=("auc", "logloss")))
    closed = None
    for number in range(6):
        window.add(train_step(run.learner, [run.learner.place(batch(number))]))
        if number % 2:
            if closed is not None:
                with thread.running(card.clocks.seen(card.thread)):
                    window.figures(closed)
                card.clocks.follow(card.thread, card.clocks.of(thread.who))  # which finds the metrics it left
            closed = window.close()
    run.learner.settle()


@pytest.mark.parametrize("replays", [False, True], ids=["launched", "replayed"])
def test_metrics_that_another_thread_reads_are_ordered_with_the_steps_that_go_on(card: Card, replays: bool) -> None:
    train_measured(card, replays)
    card.check()


def test_it_is_seen_where_metrics_are_read_without_a_wait_for_them(card: Card) -> None:
    card.left_out = {"window.py:figures waits"}
    train_measured(card, replays=True)
    assert card.findings
