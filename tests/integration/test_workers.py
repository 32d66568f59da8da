"""Under torch's DataLoader: forked and spawned workers, without duplicates, epochs that differ, no state."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import hybridrec as hr
from tests.data.oracle import flat, users
from tests.patience import PATIENCE

ROWS = 300
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # few cores
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # Python 3.12 on forks
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("workers")
    pq.write_table(
        pa.table({"user": range(ROWS), "tags": [[i] for i in range(ROWS)]}),
        made / "a.parquet",
        row_group_size=70,
    )
    return made


def opened(folder):
    return hr.data.parquet(folder, batch_size=16)


def loader(ds, method, workers=2, **options):
    return DataLoader(ds, batch_size=None, num_workers=workers, multiprocessing_context=method, **options)


def read(batches):
    return flat(users(batches))


def test_without_workers_the_loader_adds_nothing(folder):
    ds = opened(folder)
    running = iter(DataLoader(ds, batch_size=None))
    assert users([next(running)]) == [list(range(16))]
    assert ds.state_dict()["position"]["eras"][-1]["steps"] == 1


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_every_row_once_and_mix_anew_in_each_epoch(folder, method):
    ds = opened(folder).where([("user", "!=", 7)]).shuffle(seed=1, rows=100)
    read(ds)  # the threads of an earlier epoch do no harm
    ds.set_epoch(0)
    batches = loader(ds, method)
    epochs = [read(batches) for _ in range(3)]
    assert all(sorted(epoch) == [i for i in range(ROWS) if i != 7] for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    with pytest.raises(RuntimeError, match="the workers' positions are not known here"):
        ds.state_dict()
    ds.set_epoch(0)
    assert read(batches) == epochs[0]
    assert ds.shard(0, 1).state_dict()["position"]["epoch"] == 0


def test_persistent_workers_mix_anew_too(folder):
    batches = loader(opened(folder).shuffle(seed=1, rows=100), "fork", persistent_workers=True)
    epochs = [tuple(read(batches)) for _ in range(3)]
    assert len(set(epochs)) == 3
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)


def test_persistent_workers_hear_of_set_epoch(folder):
    ds = opened(folder).shuffle(seed=1, rows=100)
    batches = loader(ds, "fork", persistent_workers=True)
    epochs = [read(batches) for _ in range(3)]
    ds.set_epoch(1)
    assert [read(batches), read(batches)] == epochs[1:]


@pytest.mark.parametrize("workers", [2, 3, 25])
def test_workers_cut_as_many_batches_as_the_dataset_has(folder, workers):
    batches = loader(opened(folder), "fork", workers)
    sizes = [len(batch) for batch in batches]
    assert len(sizes) == len(batches) == 19
    assert sorted(sizes) == [12] + [16] * 18


def test_a_stream_is_refused_under_workers():
    ds = hr.data.stream([pa.record_batch({"user": [1]})], batch_size=1)
    with pytest.raises(ValueError, match="cannot be counted out to DataLoader workers"):
        list(loader(ds, "fork"))


def test_workers_of_several_ranks_share_the_rows_out(folder):
    parts = [read(loader(opened(folder).shard(rank, 3), "fork")) for rank in range(3)]
    assert sorted(flat(parts)) == list(range(ROWS))


def test_more_workers_than_rows_are_no_harm(tmp_path):
    pq.write_table(pa.table({"user": [1, 2]}), tmp_path / "a.parquet")
    assert sorted(read(loader(opened(tmp_path), "fork", workers=3))) == [1, 2]


def test_a_state_is_refused_in_workers(folder):
    ds = opened(folder)
    running = iter(ds)
    next(running)
    state = ds.state_dict()
    ds.load_state_dict(state)
    with pytest.raises(ValueError, match="a loaded state cannot go on under DataLoader"):
        list(loader(ds, "fork"))
    running.close()


def test_shards_by_batch_are_refused_in_workers(folder):
    with pytest.raises(ValueError, match="would break the global batches"):
        list(loader(opened(folder).shard(0, 2, by="batch"), "fork"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a CUDA device")
def test_batches_can_be_pinned_on_their_way(folder):
    assert all(batch.ids.values.is_pinned() for batch in loader(opened(folder), "fork", pin_memory=True))


def test_an_error_in_a_worker_reaches_the_consumer(folder):
    ds = hr.data.table({"user": [1, None]}, batch_size=1)
    ds = ds.with_schema(ds.schema.edit("user", null="error"))
    with pytest.raises(Exception, match="a null"):
        list(loader(ds, "fork"))


SCRIPT = """
import hybridrec as hr, sys
from torch.utils.data import DataLoader
ds = hr.data.parquet(sys.argv[1], batch_size=16)
running = iter(ds)
next(running)  # threads run while the workers are forked
rows = [u for batch in DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context="fork")
        for u in batch.ids["user"].values.tolist()]
assert sorted(rows) == list(range(300)), rows
print("ok")
"""


@pytest.mark.slow
def test_workers_forked_while_threads_run_do_not_hang(folder):
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
