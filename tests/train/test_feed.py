"""Batches that a thread brings ahead."""

from __future__ import annotations

import threading

import pytest
import torch

from hybridrec.train.feed import Feed
from hybridrec.train.placed import Placed
from hybridrec.types import Batch
from tests.train.clicks import dataset

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
