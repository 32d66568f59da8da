"""Batches that a thread brings ahead."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridrec.embedding.gpu.replay import captured
from hybridrec.train import Callback, EarlyStopping, StepResult, Trainer
from hybridrec.train.feed import AHEAD, Feed, seats_ahead
from hybridrec.train.placed import Placed
from hybridrec.types import Batch
from tests.patience import PATIENCE, wait_for
from tests.train.clicks import QUIET, assert_same, dataset, trainer_of, weights

CPU = torch.device("cpu")


def place(batch: Batch) -> Placed:
    return Placed(batch, float(len(batch)))


def test_batches_come_in_their_order_and_end():
    ds = dataset(rows=230)
    found = [placed.batch for placed in Feed(ds, place, CPU)]
    assert [len(batch) for batch in found] == [100, 100, 30]
    assert all(a.equal(b) for a, b in zip(found, ds, strict=True))


def test_the_state_is_that_of_the_batch_in_hand_and_not_of_those_read_ahead():
    ds, other = dataset(rows=900), dataset(rows=900)
    feed, alone = Feed(ds, place, CPU, ds.state_dict), iter(other)
    assert feed.state == other.state_dict()
    for _ in range(4):
        next(feed), next(alone)
        assert feed.state == other.state_dict()
    feed.close()
    assert feed.state == other.state_dict()


def test_an_error_of_the_source_comes_where_its_batch_would_have_come():
    def broken():
        yield from list(dataset(rows=200))
        raise OSError("the disk is gone")

    feed = Feed(broken(), place, CPU)
    next(feed), next(feed)
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed)
    with pytest.raises(StopIteration):
        next(feed)


def test_an_error_of_placing_comes_from_the_feed():
    def refuse(batch: Batch) -> Placed:
        raise ValueError("label 'click' is 3")

    with pytest.raises(ValueError, match="label 'click' is 3"):
        next(Feed(dataset(rows=200), refuse, CPU))


def test_closing_ends_the_thread_and_the_source_while_both_have_more():
    closed = threading.Event()

    def endless():
        batch = next(iter(dataset(rows=100)))
        try:
            while True:
                yield batch
        finally:
            closed.set()

    feed = Feed(endless(), place, CPU)
    next(feed)
    feed.close()
    assert closed.is_set()
    assert not feed._thread.is_alive()
    assert list(feed) == []


class Placing:
    """Places batches, and counts those that no step has taken yet."""

    def __init__(self) -> None:
        self.placed = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> Placed:
        with self._lock:
            self.placed += 1
            self.most = max(self.most, self.placed)
        return place(batch)

    def take(self, feed: Feed) -> Batch:
        with self._lock:
            self.placed -= 1  # before its seat is free
        return next(feed).batch

    def wait_for(self, count: int) -> None:
        wait_for(lambda: self.placed == count)


def test_feeds_that_share_seats_have_no_more_batches_ahead_than_one_alone():
    ds, seats, placing = dataset(rows=500), seats_ahead(), Placing()
    first = Feed(ds, placing, CPU, seats=seats)
    for _ in range(3):
        placing.wait_for(AHEAD + 1)
        placing.take(first)
    wait_for(lambda: first.all_read)
    second = Feed(ds, placing, CPU, seats=seats)
    for feed in (first, first, second, second):
        placing.wait_for(AHEAD + 1)
        placing.take(feed)
    assert list(first) == []
    second.close()
    assert placing.most == AHEAD + 1


def test_a_feed_that_is_closed_leaves_its_seats_to_the_next():
    ds, seats = dataset(rows=900), seats_ahead()
    for _ in range(3):
        placing = Placing()
        feed = Feed(ds, placing, CPU, seats=seats)
        placing.wait_for(AHEAD + 1)
        feed.close()
    with pytest.raises(ValueError, match="no more"):
        Feed(ds, refuse_all, CPU, seats=seats).__next__()
    assert len(list(Feed(ds, place, CPU, seats=seats))) == 9
    assert seats._left == AHEAD + 1


def refuse_all(batch: Batch) -> Placed:
    raise ValueError("no more")


def once(batch: Batch, wanted: threading.Event, taken: threading.Event) -> Iterator[Batch]:
    """A batch when it is wanted; the event comes when it is on its way to the device."""
    wanted.wait(PATIENCE)
    yield batch
    taken.set()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_that_comes_during_a_capture_is_no_part_of_it():
    """torch has 32 streams, which it hands out in turn: one feed in so many would have had that of the capture."""
    device, batch = torch.device("cuda", 0), next(iter(dataset(rows=100)))
    number = torch.zeros((), device=device)
    for _ in range(33):
        wanted, taken = threading.Event(), threading.Event()
        source = once(batch, wanted, taken)
        feed = Feed(source, lambda batch: Placed(batch.to(device, non_blocking=True), 1.0), device)
        captured(partial(meanwhile, number, wanted, taken))
        assert next(feed).batch.to("cpu").equal(batch)
        feed.close()


def meanwhile(number: torch.Tensor, wanted: threading.Event, taken: threading.Event) -> None:
    """Launch something, and wait until the batch is on its way."""
    number.add_(1)
    wanted.set()
    assert taken.wait(PATIENCE)


ENDS_WITH_BATCHES_TO_COME = """
import torch
from hybridrec.train.feed import Feed
from hybridrec.train.placed import Placed

def busy(batch):
    for _ in range(20):
        torch.ones(200, 200) @ torch.ones(200, 200)
    return Placed(batch, 1.0)

feed = Feed(iter(range(10**9)), busy, torch.device("cpu"))
next(feed)
"""


def test_a_program_may_end_while_its_feed_is_at_work():
    """Once, the thread was inside torch when Python ended, which aborts the process."""
    command = [sys.executable, "-c", ENDS_WITH_BATCHES_TO_COME]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def ahead(out: Path | None = None, *callbacks: Callback) -> Trainer:
    """A trainer that reads ahead, as for a GPU."""
    trainer = trainer_of(dataset(), out=out, callbacks=callbacks, options=replace(QUIET, save_every=4))
    trainer.learner.device = CPU
    return trainer


def test_a_run_that_reads_ahead_is_resumed_bit_for_bit(tmp_path):
    data = dataset().shuffle(seed=0)
    plain = trainer_of(data)
    plain.fit(data, epochs=2)
    whole = ahead()
    whole.fit(dataset().shuffle(seed=0), epochs=2)
    assert_same(weights(whole.model), weights(plain.model))
    ahead(tmp_path).fit(dataset().shuffle(seed=0), steps=13)
    rest = ahead(tmp_path)
    rest.fit(dataset().shuffle(seed=0), epochs=2, resume="auto")
    assert rest.step == whole.step
    assert_same(weights(rest.model), weights(whole.model))


class CtrlC(Callback):
    """Presses it after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_saves_the_position_of_the_last_step_and_leaves_no_thread(tmp_path):
    whole = ahead()
    whole.fit(dataset(), epochs=1)
    cut = ahead(tmp_path, CtrlC(7))
    with pytest.raises(KeyboardInterrupt):
        cut.fit(dataset(), epochs=1)
    assert not [thread for thread in threading.enumerate() if thread.name == "hybridrec-feed"]
    rest = ahead(tmp_path)
    rest.fit(dataset(), epochs=1, resume="auto")
    assert_same(weights(rest.model), weights(whole.model))


def test_a_fit_that_stops_early_has_given_up_the_next_epoch_before_it_loads_the_best_weights(tmp_path):
    class AtTheEnd(Callback):
        feeds: list[str] | None = None

        def on_record(self, trainer: Trainer, record: dict[str, Any]) -> None:
            if record["kind"] == "final":
                self.feeds = [thread.name for thread in threading.enumerate() if thread.name == "hybridrec-feed"]

    trainer = ahead(tmp_path, seen := AtTheEnd())
    trainer.options = replace(trainer.options, early_stopping=EarlyStopping("loss", patience=1, min_delta=10.0))
    trainer.fit(dataset(), dataset(300), epochs=9)
    assert trainer.epoch == 2
    assert seen.feeds == []
