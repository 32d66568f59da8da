"""What a fit reads: batches that come ahead for a GPU, and their ids for other ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from hybridrec.parallel.cost import Wire
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.shard import place
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.train import Callback, Trainer
from hybridrec.train.feed import AHEAD
from hybridrec.train.losses import LOSSES
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner
from hybridrec.train.training_data import TrainingData
from tests.train.clicks import dataset, model_of, trainer_of


@pytest.mark.parametrize("device", [None, torch.device("cpu")], ids=["as it is", "fed"])
def test_ids_of_a_sharded_model_go_ahead_by_one_batch_wherever_batches_are_placed(monkeypatch, device):
    told: list[torch.Tensor] = []
    monkeypatch.setattr(ShardedModel, "prepare", lambda self, batch, weight: told.append(batch.label))
    ds, other = dataset(rows=70), dataset(rows=70)
    model = place(model_of(ds), None, Ranks(0, 1), Wire(), {})
    data = TrainingData(ds, Learner(model, LOSSES["bce"], device=device))
    wanted = iter(other)
    for number, placed in enumerate(data.epoch(0)):
        assert isinstance(placed, Placed)
        assert placed.batch.label is told[number]
        assert str(placed.batch.label) == str(next(wanted).label)
        assert len(told) in (number + 1, number + 2)
        assert data.state() == other.state_dict()
    assert len(told) == len(other)


def fed(ds: Any) -> TrainingData:
    return TrainingData(ds, Learner(model_of(dataset()), LOSSES["bce"], device=torch.device("cpu")))


def labels(batches: Iterable[Any]) -> list[Any]:
    return [placed.batch.label.tolist() for placed in batches]


def test_an_epoch_that_was_begun_has_the_batches_it_would_have_had():
    ds, other = dataset(rows=450).shuffle(seed=3), dataset(rows=450).shuffle(seed=3)
    data, plain = fed(ds), fed(other)
    for number in range(3):
        assert labels(data.epoch(number)) == labels(plain.epoch(number))
        data.epoch_is_done()
        plain.epoch_is_done()
        data.begin(number + 1)
        other.set_epoch(number + 1)
        assert data.state() == other.state_dict(), "the place before the first batch, however many are read ahead"
    data.close()


def feeding() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "hybridrec-feed"}


def test_an_epoch_that_was_begun_in_vain_is_given_up():
    data, before = fed(dataset(rows=450)), feeding()
    data.begin(1)
    assert len(feeding() - before) == 1
    data.close()
    assert not feeding() - before
    data.begin(1)
    assert labels(data.epoch(5)) == labels(fed(dataset(rows=450)).epoch(5)), "another epoch"
    assert not feeding() - before


def ended(feed: Any) -> bool:
    until = time.monotonic() + 30
    while not feed.all_read and time.monotonic() < until:
        time.sleep(0.001)
    return feed.all_read


def test_an_epoch_is_begun_when_the_last_batches_of_the_one_before_wait_for_their_steps():
    ds, other, before = dataset(rows=450).shuffle(seed=3), dataset(rows=450).shuffle(seed=3), feeding()
    data, plain, count = fed(ds), fed(other), len(dataset(rows=450))
    wanted, coming = labels(plain.epoch(0)), iter(data.epoch(0))
    found = labels([next(coming)])
    data.begin(1)
    assert len(feeding() - before) == 1, "most of this epoch is still to be read"
    found += labels(islice(coming, count - 1 - AHEAD))
    assert ended(coming)
    place = data.state()
    data.begin(1)
    begun = feeding() - before
    data.begin(1)
    assert feeding() - before == begun, "it begins once"
    assert data.state() == place, "still that after the last batch which was taken"
    assert found + labels(coming) == wanted
    data.epoch_is_done()
    assert labels(data.epoch(1)) == labels(plain.epoch(1))
    assert not feeding() - before


def test_only_a_dataset_is_begun_ahead():
    class Plain:
        began = 0

        def __iter__(self) -> Iterator[Any]:
            self.began += 1
            return iter(dataset(rows=50))

    data, before = fed(plain := Plain()), feeding()
    data.begin(1)
    assert plain.began == 0
    alone = TrainingData(dataset(), Learner(model_of(dataset()), LOSSES["bce"]))
    alone.begin(1)
    assert not feeding() - before, "no device waits for batches"


@pytest.mark.parametrize("reader", [False, True])
def test_a_fit_asks_for_the_next_epoch_after_each_step_unless_a_callback_may_read_the_data(monkeypatch, reader):
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(TrainingData, "begin", lambda self, number: asked.append((trainer.state.step, number)))
    ds = dataset(rows=300)
    callbacks = [EpochReader()] if reader else []
    trainer = trainer_of(ds, callbacks=callbacks)
    trainer.fit(ds, epochs=2)
    assert asked == ([] if reader else [(1, 1), (2, 1), (3, 1), (3, 1)])


class EpochReader(Callback):
    def on_epoch(self, trainer: Trainer) -> None: ...
