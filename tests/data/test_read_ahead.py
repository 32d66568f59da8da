"""The next epoch, read while this one is used."""

from __future__ import annotations

import gc
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from hybridrec.data.loader import Loader
from tests.data.oracle import equal_batches
from tests.patience import wait_for


def threads() -> int:
    return sum(t.name.startswith("hybridrec") for t in threading.enumerate())


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    assert threads() == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ahead")
    table = pa.table({"user": range(8000), "price": [float(i) for i in range(8000)]})
    for part in range(2):
        pq.write_table(table.slice(part * 4000, 4000), made / f"{part}.parquet", row_group_size=1000)
    return made


def opened(folder, shuffled: bool = False, **options):
    ds = hr.data.parquet(folder, **({"batch_size": 300, "threads": 2} | options))
    return ds.shuffle(seed=1, rows=2000) if shuffled else ds


def settled(loader: Loader) -> int:
    """What a loader holds once its threads have gone to sleep."""
    account, held, since = loader._schedule._account, -1, time.monotonic()
    while time.monotonic() - since < 0.05:
        if account.held != held:
            held, since = account.held, time.monotonic()
        time.sleep(0.005)
    return held


@pytest.mark.parametrize("memory", [1 << 16, 1 << 30])
@pytest.mark.parametrize("shuffled", [False, True])
def test_an_epoch_read_ahead_is_the_one_that_would_have_come(folder, shuffled, memory):
    ds, plain = opened(folder, shuffled, memory=memory), opened(folder, shuffled)
    for epoch in range(3):
        ds.set_epoch(epoch)
        running = iter(ds)
        first = next(running)
        ds.read_ahead()
        assert equal_batches([first, *running], list(plain))
    ds.drop_ahead()


def test_it_begins_when_the_epoch_before_has_nothing_left_to_decode(folder):
    ds = opened(folder, memory=1)
    running = iter(ds)
    next(running)
    ds.read_ahead()
    ahead = ds._cursor.ahead.batches.loader
    settled(running.loader)
    assert ahead.unbegun
    for _ in range(25):
        next(running)
    wait_for(lambda: not ahead.unbegun)
    running.close()


def test_two_epochs_together_stay_under_the_ceiling(folder):
    whole = opened(folder, memory=1 << 30)
    running = iter(whole)
    next(running)
    most = settled(running.loader)
    running.close()
    ds = opened(folder, memory=most)
    running = iter(ds)
    next(running)
    ds.read_ahead()
    ahead = ds._cursor.ahead.batches.loader
    room = 3 * 1000 * 16  # pieces that threads had begun below it, and the one that is always read
    for number, _ in enumerate(running):
        if number % 6 == 0:
            assert settled(running.loader) + settled(ahead) <= most + room
    wait_for(lambda: ahead._schedule._account.held > 0)
    ds.drop_ahead()


def test_the_state_is_that_of_the_epoch_in_use(folder):
    ds, plain = opened(folder, shuffled=True), opened(folder, shuffled=True)
    running, alone = iter(ds), iter(plain)
    for _ in range(4):
        next(running), next(alone)
        ds.read_ahead()
        assert ds.state_dict() == plain.state_dict()
    other = opened(folder, shuffled=True)
    other.load_state_dict(ds.state_dict())
    assert equal_batches(list(other), list(running))
    alone.close()
    ds.drop_ahead()


@pytest.mark.parametrize("then", ["close", "another epoch", "drop"])
def test_an_epoch_that_does_not_come_is_dropped(folder, then):
    ds = opened(folder)
    running = iter(ds)
    next(running)
    ds.read_ahead()
    if then == "close":
        running.close()
    elif then == "drop":
        ds.drop_ahead()
        list(running)
    else:
        ds.set_epoch(7)
        iter(ds).close()
        running.close()
    assert ds._cursor.ahead is None
    gc.collect()
    assert threads() == 0


def test_nothing_is_read_ahead_of_a_stream_or_of_data_that_nobody_reads(folder):
    ds = opened(folder)
    ds.read_ahead()
    assert ds._cursor.ahead is None
    parts = [pa.record_batch({"user": [1, 2]}), pa.record_batch({"user": [3]})]
    stream = hr.data.stream(lambda: iter(parts), batch_size=1)
    running = iter(stream)
    next(running)
    stream.read_ahead()
    assert stream._cursor.ahead is None
    running.close()
