from __future__ import annotations

import queue
import threading

import pyarrow as pa
import pytest

import hybridrec as hr
from tests.data.oracle import equal_batches, flat, rows_of, users
from tests.patience import wait_for


def parts(rows=100, size=7):
    """Record batches of `size` rows, then one of none."""
    whole = pa.table({"user": range(rows), "tags": [[i] * (i % 4) for i in range(rows)]})
    return [*whole.to_batches(max_chunksize=size), whole.to_batches()[0].slice(0, 0)]


def test_a_stream_gives_exact_batches_in_order():
    ds = hr.data.stream(parts, batch_size=16)
    assert users(ds) == [list(range(i, min(i + 16, 100))) for i in range(0, 100, 16)]
    assert users(ds) == users(hr.data.table(pa.Table.from_batches(parts()[:-1]), batch_size=16))


def test_the_function_is_reachable_as_hr_data_stream_whatever_was_imported_before():
    import hybridrec.data.open
    import hybridrec.data.stream_source

    assert hr.data.stream is hybridrec.data.open.stream


def test_struct_leaves_and_other_encodings_come_as_from_files():
    batch = pa.record_batch(
        {
            "user": pa.array([{"age": 3}, None], pa.struct({"age": pa.int8()})),
            "word": pa.array(["a", "b"], pa.string_view()),
            "code": pa.array(["x", "x"]).dictionary_encode(),
        }
    )
    streamed, read = hr.data.stream([batch], batch_size=2), hr.data.table(batch, batch_size=2)
    assert streamed.schema == read.schema
    assert equal_batches(list(streamed), list(read))


def test_a_shuffled_stream_is_a_permutation_by_seed_and_epoch():
    ds = hr.data.stream(parts, batch_size=10).shuffle(seed=3, rows=30)
    first, second = flat(users(ds)), flat(users(ds))
    assert sorted(first) == sorted(second) == list(range(100))
    assert len({tuple(first), tuple(second), tuple(range(100))}) == 3
    again = hr.data.stream(parts, batch_size=10, threads=1, prefetch=3).shuffle(seed=3, rows=30)
    assert flat(users(again)) == first


def test_an_iterator_serves_one_epoch_and_a_list_many():
    ds = hr.data.stream(iter(parts()), batch_size=10)
    assert len(flat(users(ds))) == 100
    with pytest.raises(ValueError, match="used up by the first epoch; pass a function"):
        list(ds)
    listed = hr.data.stream(parts(), batch_size=10)
    assert users(listed) == users(listed)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("done", [0, 1, 3, 10])
def test_a_stream_resumes_where_it_stood(done, shuffled):
    def make(prefetch):
        ds = hr.data.stream(parts, batch_size=10, prefetch=prefetch)
        return ds.shuffle(seed=1, rows=25) if shuffled else ds

    ds = make(3)
    whole, running = list(make(1)), iter(ds)
    for _ in range(done):
        next(running)
    other = make(1)
    other.load_state_dict(ds.state_dict())
    assert equal_batches(list(other), whole[done:])


def test_ranks_share_the_batches_of_a_stream():
    whole = rows_of(hr.data.stream(parts, batch_size=10))
    ranks = [list(hr.data.stream(parts, batch_size=10).shard(rank, 3, by="batch")) for rank in range(3)]
    assert flat(flat(rows_of([b]) for b in step) for step in zip(*ranks, strict=True)) == whole


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda ds: ds.where([("user", ">", 3)]), "cannot count the rows of a stream"),
        (lambda ds: ds.split(0.5), "make two streams"),
        (lambda ds: ds.shuffle(rows="all"), "would read it to its end"),
        (lambda ds: ds.restore({"user": ["tags"]}), "needs the row counts of files"),
        (lambda ds: list(ds.shard(0, 2)), 'use shard\\(..., by="batch"\\)'),
    ],
)
def test_what_needs_a_count_is_refused_with_the_remedy(step, message):
    with pytest.raises(ValueError, match=message):
        step(hr.data.stream(parts, batch_size=10))


@pytest.mark.parametrize("option", [{"where": [("user", ">", 3)]}, {"on_bad_file": "skip"}])
def test_options_that_mean_nothing_to_a_stream_are_refused(option):
    with pytest.raises((ValueError, TypeError), match=next(iter(option))):
        hr.data.stream(parts, batch_size=10, **option)


def test_a_stream_has_no_length():
    ds = hr.data.stream(parts, batch_size=10)
    for ask in (len, lambda ds: ds.num_rows):
        with pytest.raises(TypeError, match="a stream has no length"):
            ask(ds)


def test_streams_that_are_none_are_refused():
    with pytest.raises(ValueError, match="the stream is empty"):
        hr.data.stream([], batch_size=1)
    with pytest.raises(TypeError, match="gives pyarrow RecordBatches, not dict"):
        hr.data.stream([{"user": [1]}], batch_size=1)


def test_a_change_of_schema_is_an_error_after_the_batches_before_it():
    made = [*parts(20)[:-1], pa.record_batch({"user": ["a"]})]
    running, got = iter(hr.data.stream(made, batch_size=10)), []
    with pytest.raises(ValueError, match="has the schema\nuser: string\nbut the first one had"):
        got.extend(running)
    assert users(got) == [list(range(10)), list(range(10, 20))]


def test_an_error_in_the_stream_comes_after_whole_batches_and_loses_no_row():
    def broken():
        yield from parts(35)[:-1]
        raise ConnectionError("the queue is gone")

    ds, got = hr.data.stream(broken, batch_size=10), []
    with pytest.raises(ConnectionError, match="the queue is gone"):
        got.extend(ds)
    assert users(got) == [list(range(i, i + 10)) for i in (0, 10, 20)]
    healed = hr.data.stream(lambda: parts(35), batch_size=10)
    healed.load_state_dict(ds.state_dict())
    assert users(healed) == [[30, 31, 32, 33, 34]]


def test_a_slow_stream_delivers_what_is_finished():
    source: queue.Queue[pa.RecordBatch | None] = queue.Queue()
    source.put(pa.record_batch({"user": list(range(10))}))
    running = iter(hr.data.stream(iter(source.get, None), batch_size=4, threads=2))
    assert users([next(running), next(running)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    source.put(pa.record_batch({"user": [10, 11]}))
    source.put(None)
    assert users(running) == [[8, 9, 10, 11]]


def test_closing_does_not_wait_for_a_stream_that_never_answers():
    source: queue.Queue[pa.RecordBatch | None] = queue.Queue()
    source.put(pa.record_batch({"user": [1, 2]}))
    running = iter(hr.data.stream(iter(source.get, None), batch_size=2, threads=2))
    next(running)
    running.close()
    source.put(None)  # now it answers, and the last thread ends
    wait_for(lambda: not any(t.name.startswith("hybridrec-loader") for t in threading.enumerate()))


def test_two_epochs_at_once_do_not_disturb_each_other():
    ds = hr.data.stream(parts, batch_size=10)
    assert all(a.equal(b) for a, b in zip(ds, ds, strict=True))


def test_an_epoch_left_early_keeps_nothing():
    made = pa.table({"user": range(100_000)}).to_batches(max_chunksize=1000)
    ds = hr.data.stream(lambda: iter(made), batch_size=10, memory=1 << 30)
    for _ in ds:
        break
    assert not any(isinstance(value, dict) and value for value in vars(ds._rows.source).values())


def test_a_stream_can_be_joined():
    ages = pa.table({"user": range(50), "age": range(50)})
    ds = hr.data.stream(parts, batch_size=100).join(ages, on="user")
    (batch,) = ds
    assert batch.ids["age"].values[:50].tolist() == list(range(50))
    assert set(batch.ids["age"].values[50:].tolist()) == {hr.data.NULL_ID}
