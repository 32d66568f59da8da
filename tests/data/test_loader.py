from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from hybridrec.data.loader import Loader
from hybridrec.data.rows import CHUNK_BYTES
from hybridrec.data.schedule import Schedule
from tests.data.oracle import equal_batches, flat, users
from tests.patience import PATIENCE, wait_for


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("hybridrec")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    gc.collect()
    assert threads() == []
    yield
    gc.collect()
    assert threads() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("loader")
    numbers = range(20_000)
    table = pa.table({"user": numbers, "tags": [[i] * (i % 7) for i in numbers], "price": [float(i) for i in numbers]})
    for part in range(4):
        pq.write_table(table.slice(part * 5000, 5000), made / f"{part}.parquet", row_group_size=1111)
    return made


def opened(folder, **options):
    return hr.data.parquet(folder, **({"batch_size": 512, "threads": 3} | options))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("threads_", [1, 2, 5])
@pytest.mark.parametrize("memory", [1 << 20, 1 << 30])
def test_batches_are_the_same_for_any_effort(folder, threads_, memory, shuffled):
    def order(ds):
        return ds.shuffle(seed=1, rows=3000) if shuffled else ds

    expected = list(order(opened(folder, threads=1, prefetch=1)))
    assert equal_batches(list(order(opened(folder, threads=threads_, memory=memory, prefetch=4))), expected)


def test_a_ceiling_of_one_byte_still_delivers(folder):
    assert flat(users(opened(folder, memory=1, batch_size=7000))) == list(range(20_000))


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_a_loop_ends_the_threads(folder, taken):
    running = iter(opened(folder, memory=1, prefetch=1))  # so that there is more to read, however long this waits
    for _ in range(taken):
        next(running)
    assert threads()
    del running
    assert threads() == []


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_a_shuffled_loop_ends_the_threads(folder, taken):
    running = iter(opened(folder).shuffle(seed=1))
    assert len([next(running) for _ in range(taken)]) == taken
    del running
    assert threads() == []


def test_the_end_of_an_epoch_ends_the_threads(folder):
    running = iter(opened(folder))
    assert len(list(running)) == 40
    assert threads() == []
    assert next(running, None) is None


def test_close_ends_the_threads_at_any_moment_and_may_be_repeated(folder):
    for delay in np.linspace(0, 0.01, 25):
        running = iter(opened(folder, batch_size=64))
        time.sleep(delay)
        running.close()
        running.close()
        assert threads() == []


def test_an_iterator_in_a_cycle_is_collected_with_its_threads(folder):
    running = iter(opened(folder))
    next(running)
    cycle = [running]
    cycle.append(cycle)
    del running, cycle
    gc.collect()
    assert threads() == []


def test_an_iterator_may_be_collected_by_one_of_its_own_threads(folder, monkeypatch):
    """As the garbage collector does it: in whatever thread allocates, even inside the lock."""
    plan_ahead, loaders = Loader._plan_ahead, []

    def collect(self):
        if loaders and self is loaders[0]:
            self.close()
        plan_ahead(self)

    monkeypatch.setattr(Loader, "_plan_ahead", collect)
    running = iter(opened(folder))
    loaders.append(running.loader)

    def ended() -> bool:
        with running.loader._turn:
            running.loader._turn.notify_all()
        return not threads()

    wait_for(ended)


def test_an_abandoned_exception_holds_no_threads(folder):
    def consume():
        for _ in opened(folder):
            raise KeyError("mine")

    with pytest.raises(KeyError):
        consume()
    gc.collect()
    assert threads() == []


def test_many_epochs_in_a_row_and_side_by_side_agree(folder):
    ds = opened(folder)
    first = list(ds)
    for _ in range(3):
        assert all(a.equal(b) and a.equal(c) for a, b, c in zip(ds, ds, first, strict=True))


def test_a_batch_outlives_its_loader(folder):
    batch = next(iter(opened(folder)))
    gc.collect()
    assert batch.ids["user"].values.tolist() == list(range(512))
    assert batch.dense[:, 0].tolist() == [float(i) for i in range(512)]


def test_an_error_comes_after_the_batches_before_it_and_ends_the_iterator(folder):
    table = pa.table({"user": pa.array([*range(900), None, *range(99)])})
    ds = hr.data.table(table, batch_size=100, threads=2)
    ds = ds.with_schema(ds.schema.edit("user", null="error"))
    running, got = iter(ds), []
    with pytest.raises(ValueError, match="row 900: a null"):
        got.extend(running)
    assert flat(users(got)) == list(range(900))
    assert threads() == []
    assert next(running, "over") == "over"
    assert ds.state_dict()["position"]["eras"][-1]["steps"] == 9


def test_ranks_that_must_keep_step_get_the_error_too_and_no_empty_batches():
    ds = hr.data.table(pa.table({"user": pa.array([1, None, 3, 4])}), batch_size=1).shard(0, 2)
    running = iter(ds.with_schema(ds.schema.edit("user", null="error")))
    next(running)
    with pytest.raises(ValueError, match="a null"):
        next(running)
    assert next(running, "over") == "over"


def test_a_defect_in_a_worker_reaches_the_consumer(folder, monkeypatch):
    def broken(self, piece):
        raise AssertionError("a defect")

    monkeypatch.setattr(Schedule, "decoded", broken)
    with pytest.raises(AssertionError, match="a defect"):
        list(opened(folder))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_with_a_running_loader_can_drop_it(folder):
    running = iter(opened(folder))
    next(running)
    with running.loader._turn:  # as another thread may hold it at the moment of the fork
        child = os.fork()
        if child == 0:
            running.close()
            os._exit(0 if next(running, None) is None else 3)
    deadline = time.monotonic() + PATIENCE
    while (waited := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(waited[1]) == 0
    assert len(list(running)) == 39


# -- memory --------------------------------------------------------------------------------------------------

LARGE_ROWS = 500_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """160 MB of lists in one file of ten row groups."""
    path = tmp_path_factory.mktemp("large") / "a.parquet"
    rows = LARGE_ROWS
    values = pa.array(np.random.default_rng(0).integers(0, 1 << 40, rows * 40))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, rows * 40 + 1, 40, dtype=np.int32)), values)
    pq.write_table(pa.table({"user": range(rows), "tags": lists}), path, row_group_size=50_000)
    return path


@pytest.mark.parametrize("how", ["in order", "shuffled", "chosen window", "joined"])
def test_decoding_ahead_stays_under_the_ceiling_while_the_consumer_is_slow(large, how):
    memory = 24 << 20
    ds = hr.data.parquet(large, batch_size=1000, threads=2, memory=memory)
    if how == "shuffled":
        ds = ds.shuffle(seed=1, rows=20_000)
    elif how == "chosen window":
        ds = ds.shuffle(seed=1)
    elif how == "joined":
        ends = np.arange(LARGE_ROWS + 1, dtype=np.int32) * 40
        history = pa.ListArray.from_arrays(ends, pa.array(np.zeros(LARGE_ROWS * 40, np.int64)))
        table = pa.table({"user": range(LARGE_ROWS), "seen": history})
        ds = ds.select(["user"]).join(table, on="user").shuffle(seed=1)
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for i, batch in enumerate(ds):
        if i < 20:
            time.sleep(0.02)  # let the threads run as far ahead as they may
        most = max(most, pa.total_allocated_bytes() - before)
        rows += len(batch)
    assert rows == LARGE_ROWS
    assert most < memory + (2 + 1) * CHUNK_BYTES, f"{most / 2**20:.0f} MiB"  # each thread may be inside a chunk


def test_memory_does_not_grow_with_epochs(large):
    ds = hr.data.parquet(large, batch_size=5000, threads=2, memory=24 << 20).shuffle(seed=1)
    sizes = []
    for _ in range(3):
        for _ in ds:
            pass
        gc.collect()
        sizes.append(pa.total_allocated_bytes())
    assert sizes[-1] <= sizes[0] + (1 << 20)


def test_what_a_left_epoch_had_decoded_is_let_go(large):
    before = pa.total_allocated_bytes()
    running = iter(hr.data.parquet(large, batch_size=1000, threads=2).shuffle(seed=1))
    next(running)
    assert pa.total_allocated_bytes() > before + (4 << 20)
    del running
    gc.collect()
    assert pa.total_allocated_bytes() < before + (1 << 20)


def test_memory_of_dropped_batches_serves_later_ones_and_that_of_kept_ones_does_not():
    # with so little memory, no more is ahead than `prefetch` says, however long this waits for its turn
    ds = hr.data.table({"user": range(64_000)}, batch_size=1000, threads=1, prefetch=1, memory=1)
    kept, seen = [], set()
    for number, batch in enumerate(ds):
        seen.add(batch.arena.data_ptr())
        if number % 10 == 0:
            kept.append((number, batch.ids["user"].values))  # a view alone keeps its block
    assert all(values.tolist() == list(range(1000 * n, 1000 * n + 1000)) for n, values in kept)
    assert len(kept) < len(seen) < 64
    assert len({values.data_ptr() for _, values in kept}) == len(kept)
