from __future__ import annotations

import copy
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hybridrec as hr
from hybridrec.data import NULL_ID, Feature, Schema
from tests.data.oracle import as_id, equal_batches, flat, rows_of, users

ROWS = 1000


def table(rows=ROWS, start=0):
    numbers = range(start, start + rows)
    return pa.table(
        {
            "user": pa.array(numbers, pa.int64()),
            "tags": pa.array([[i] * (i % 5) for i in numbers], pa.list_(pa.int64())),
            "word": pa.array([f"w{i}" for i in numbers], pa.string()),
            "price": pa.array([i / 2 for i in numbers], pa.float32()),
            "click": pa.array([i % 2 for i in numbers], pa.int8()),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """1000 rows in five files, two of them empty, in row groups of 48."""
    made = tmp_path_factory.mktemp("clicks")
    for i, (start, stop) in enumerate([(0, 0), (0, 300), (300, 310), (310, 310), (310, ROWS)]):
        pq.write_table(table(stop - start, start), made / f"{i}.parquet", row_group_size=48)
    return made


def opened(folder, batch_size=64, **options):
    return hr.data.parquet(folder, label="click", batch_size=batch_size, **options)


def read(ds) -> list[int]:
    return flat(users(ds))


def rest_of(ds, steps):
    """A dataset's running iterator after some steps."""
    running = iter(ds)
    for _ in range(steps):
        next(running)
    return running


# -- batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 48, 64, 999, 1000, 1001, 10**9])
def test_batches_have_their_exact_size_across_groups_and_files(folder, batch_size):
    ds = opened(folder, batch_size)
    got = users(ds)
    assert got == [list(range(i, min(i + batch_size, ROWS))) for i in range(0, ROWS, batch_size)]
    assert len(got) == len(ds)
    short = opened(folder, batch_size, drop_last=True)
    assert users(short) == [batch for batch in got if len(batch) == batch_size]
    assert len(short) == ROWS // batch_size


def test_every_column_stays_with_its_row(folder):
    for ds in (opened(folder), opened(folder).shuffle(seed=1, rows=200)):
        for row in rows_of(ds):
            (user,) = row["user"]
            assert (row["tags"], row["price"], row["click"]) == ([user] * (user % 5), user / 2, user % 2)


def test_data_without_rows_has_no_batches(tmp_path):
    pq.write_table(table(0), tmp_path / "a.parquet")
    ds = opened(tmp_path)
    assert (list(ds), len(ds), ds.num_rows) == ([], 0, 0)
    assert [list(ds.shard(rank, 3)) for rank in range(3)] == [[], [], []]
    assert list(ds.shuffle()) == []


def test_select_gives_columns_in_the_order_asked_for(folder):
    (batch,) = opened(folder, ROWS).select(["word", "tags"])
    assert batch.ids.names == ("word", "tags")
    assert batch.dense.shape == (ROWS, 0)
    assert batch.label.tolist()[:3] == [0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="no column named 'wrod'; the schema has user, tags, word, price, click"):
        opened(folder).select(["wrod"])


def test_select_of_nothing_still_counts_rows(folder):
    assert [len(batch) for batch in opened(folder, 400).select([])] == [400, 400, 200]
    assert [len(batch) for batch in hr.data.parquet(folder, batch_size=400).select([])] == [400, 400, 200]


def test_steps_leave_the_dataset_they_came_from_alone(folder):
    ds = opened(folder)
    made = ds.select(["user"]).shuffle(seed=1).shard(0, 2).batch(10).where([("user", "<", 100)])
    assert (ds.batch_size, made.batch_size, ds.num_rows, made.num_rows) == (64, 10, ROWS, 100)
    assert read(ds) == list(range(ROWS))
    text = repr(made)
    for part in ("ParquetSource(files=5", "where((user < 100))", "shuffle(seed=1", "shard(0, 2", "batch(10"):
        assert part in text


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda ds: ds.batch(0), "batch_size=0: a batch has at least one row"),
        (lambda ds: ds.shard(2, 2), "rank 2 of 2: ranks run from 0 to world - 1"),
        (lambda ds: ds.shard(-1, 2), "rank -1 of 2"),
        (lambda ds: ds.shard(0, 2, by="file"), 'by=\'file\': shard by "rows" or by "batch"'),
        (lambda ds: ds.shard(0, 2, uneven="pad"), "uneven='pad': \"empty\""),
        (lambda ds: ds.shuffle(rows=0), "rows=0"),
        (lambda ds: ds.shuffle(rows="some"), "rows='some'"),
        (lambda ds: ds.shuffle(lanes=0), "lanes=0"),
        (lambda ds: ds.shuffle(seed=-1), "seed=-1"),
        (lambda ds: ds.set_epoch(-1), "epoch=-1"),
        (lambda ds: ds.join(pa.table({"usr": [1]}), on="user"), "no key column 'user'; it has 'usr'"),
        (lambda ds: ds.restore({"at": ["tags"]}), "no column 'at' to restore"),
    ],
)
def test_wrong_arguments_are_refused_with_the_rule(folder, step, message):
    with pytest.raises(ValueError, match=message):
        step(opened(folder))


# -- files that lack columns ---------------------------------------------------------------------------------


@pytest.fixture
def drifting(tmp_path):
    """Three files; the first and the last lack some columns."""
    full = pa.table(
        {
            "user": range(10),
            "tags": [[i, i] for i in range(10)],
            "vector": pa.array([[i, i, i] for i in range(10)], pa.list_(pa.float32(), 3)),
            "word": [f"w{i}" for i in range(10)],
            "deep": [[[i]] for i in range(10)],
        }
    )
    pq.write_table(full.select(["user"]), tmp_path / "0.parquet")
    pq.write_table(full, tmp_path / "1.parquet")
    pq.write_table(full.select(["user", "word"]).slice(0, 5), tmp_path / "2.parquet")
    return tmp_path


def test_an_absent_column_gets_its_default_in_the_right_shape_in_every_batch(drifting):
    ds = hr.data.parquet(drifting, batch_size=7)
    schema = ds.schema.edit("tags", default=[7, 8, 9]).edit("vector", default=[0.5, 1.5, 2.5])
    schema = schema.edit("word", default="w0").edit("deep", default=[[5]])
    got = list(ds.with_schema(schema))
    assert [len(batch) for batch in got] == [7, 7, 7, 4]
    rows = rows_of(got)
    lacking = [*rows[:10], *rows[20:]]
    assert [row["tags"] for row in rows[10:20]] == [[i, i] for i in range(10)]
    assert all(row["tags"] == [7, 8, 9] and row["deep"] == [[5]] for row in lacking)
    assert all([row[f"vector[{i}]"] for i in range(3)] == [0.5, 1.5, 2.5] for row in lacking)
    assert [row["word"] for row in rows[:10]] == [rows[10]["word"]] * 10
    assert [row["word"] for row in rows[20:]] == [row["word"] for row in rows[10:15]]


def test_an_absent_column_without_a_default_is_an_error_that_names_file_and_remedy(drifting):
    ds = hr.data.parquet(drifting, batch_size=7)
    with pytest.raises(ValueError, match=r"0.parquet has no column 'deep', other files do; .*default="):
        list(ds)
    assert len(read(ds.select(["user"]))) == 25


def test_files_without_rows_need_no_column(tmp_path):
    (tmp_path / "a.csv").write_text("user,price,click\n1,0.5,1\n2,1.5,0\n")
    (tmp_path / "b.csv").write_text("user,price,click\n")
    assert [len(batch) for batch in hr.data.csv(tmp_path, label="click", batch_size=2)] == [2]
    pq.write_table(pa.table({"user": [1, 2], "word": ["a", "b"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": pa.nulls(0)}), tmp_path / "b.parquet")
    assert [len(batch) for batch in hr.data.parquet(tmp_path, batch_size=2)] == [2]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_column_that_no_file_has_gets_its_default_wherever_it_stands(folder, place):
    features = [opened(folder).schema["user"], opened(folder).schema["tags"]]
    features.insert(place, Feature("X", "id", pa.int64(), default=42))
    ds = hr.data.parquet(folder, batch_size=300, schema=Schema(features))
    got = list(ds)
    assert [batch.ids["X"].values.tolist() for batch in got] == [[42] * 300] * 3 + [[42] * 100]
    assert got[0].ids.names == tuple(feature.name for feature in features)
    assert read(got) == list(range(ROWS))
    with pytest.raises(ValueError, match=r"no column named 'Y'; the data has user, .* needs a default="):
        list(ds.with_schema(Schema([Feature("Y", "id", pa.int64())])))


def test_files_that_disagree_are_named_with_both_types(tmp_path):
    pq.write_table(pa.table({"user": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b.parquet: column 'user' is string, but .*a.parquet has it as int64"):
        hr.data.parquet(tmp_path, batch_size=1)


def test_a_schema_of_other_types_is_refused(folder):
    with pytest.raises(ValueError, match="column 'word' is string in the data, but int64 in the schema"):
        hr.data.parquet(folder, batch_size=1, schema=Schema([Feature("word", "id", pa.int64())]))


# -- shuffle -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 50, 300, 5000, "all", None])
def test_a_shuffle_is_a_permutation_that_changes_with_epoch_and_seed(folder, rows):
    ds = opened(folder).shuffle(seed=5, rows=rows)
    epochs = [read(ds) for _ in range(2)]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert len({*map(tuple, epochs), tuple(range(ROWS)), tuple(read(opened(folder).shuffle(seed=6, rows=rows)))}) == 4
    ds.set_epoch(0)
    assert read(ds) == epochs[0]
    ds.set_epoch(1)
    assert read(ds) == epochs[1]


def test_the_order_depends_on_seed_and_epoch_alone(folder):
    expected = rows_of(opened(folder).shuffle(seed=5, rows=200))
    for threads, prefetch, memory, batch_size in [
        (1, 1, 1 << 20, 64),
        (3, 4, 1 << 30, 64),
        (2, 2, 1 << 24, 17),
    ]:
        torch.manual_seed(threads)
        random.seed(threads)
        np.random.seed(threads)  # noqa: NPY002
        ds = opened(folder, batch_size, threads=threads, prefetch=prefetch, memory=memory).shuffle(seed=5, rows=200)
        assert rows_of(ds) == expected


def test_no_global_generator_is_touched(folder):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    read(opened(folder).shuffle(seed=1).shard(1, 2))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])  # noqa: NPY002


def test_a_full_permutation_mixes_all_files(folder):
    order = read(opened(folder).shuffle(seed=0, rows="all"))
    assert len({user // 100 for user in order[:64]}) > 5


def test_a_window_that_does_not_fit_the_ceiling_is_refused(folder):
    with pytest.raises(ValueError, match="MiB; pass memory="):
        list(opened(folder, memory=1000).shuffle(rows=10**6))


# -- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 7])
def test_shards_are_disjoint_and_their_union_is_the_data(folder, world, shuffled):
    ds = opened(folder).shuffle(seed=1, rows=100) if shuffled else opened(folder)
    shards = [users(ds.shard(rank, world)) for rank in range(world)]
    assert sorted(flat(map(flat, shards))) == list(range(ROWS))
    sizes = [len(flat(shard)) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert len({len(shard) for shard in shards}) == 1


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_more_ranks_than_rows_give_empty_batches_and_no_hang(tmp_path, rows):
    pq.write_table(table(rows), tmp_path / "a.parquet")
    ds = opened(tmp_path, 2)
    shards = [list(ds.shard(rank, 7)) for rank in range(7)]
    assert sorted(flat(map(read, shards))) == list(range(rows))
    assert {len(shard) for shard in shards} == {min(rows, 1)}
    empty = [batch for batch in flat(shards) if not len(batch)]
    assert len(empty) == (7 - rows if rows else 0)
    for batch in empty:
        assert (batch.ids.names, batch.dense.shape, batch.label.shape) == (
            ("user", "tags", "word"),
            (0, 1),
            (0,),
        )


def test_uneven_shards_end_as_their_policy_says(folder):
    ds = opened(folder, 32)  # 500 and 500 rows, 334 and 333
    keep = [users(ds.shard(rank, 3, uneven="empty")) for rank in range(3)]
    stop = [users(ds.shard(rank, 3, uneven="stop")) for rank in range(3)]
    assert [[len(batch) for batch in shard][-1] for shard in keep] == [13, 13, 14]
    assert stop == [shard[: len(stop[0])] for shard in keep]
    assert {len(shard) for shard in stop} == {11}
    short = opened(folder, 333)
    assert [len(users(short.shard(r, 3))) for r in range(3)] == [2, 2, 2]
    assert [[len(b) for b in short.shard(r, 3)] for r in range(3)] == [[333, 0], [333, 0], [333, 1]]
    assert [[len(b) for b in short.shard(r, 3, uneven="stop")] for r in range(3)] == [[333], [333], [333]]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_by_batch_all_ranks_together_see_the_batches_of_one(folder, world, drop_last, shuffled):
    ds = opened(folder, 5 if world == 7 else 64, drop_last=drop_last)
    ds = ds.shuffle(seed=1, rows=100) if shuffled else ds
    ranks = [list(ds.shard(rank, world, by="batch")) for rank in range(world)]
    steps = [flat(rows_of([batch]) for batch in step) for step in zip(*ranks, strict=True)]
    assert steps == [rows_of([batch]) for batch in ds]


def test_shard_for_rank_reads_the_environment(folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert read(opened(folder).shard_for_rank()) == read(opened(folder).shard(1, 3))


# -- join and restore ----------------------------------------------------------------------------------------


def test_joined_columns_arrive_by_key_and_nulls_where_there_is_none(folder):
    ages = pa.table({"user": range(0, ROWS, 2), "age": range(0, ROWS, 2), "seen": [[i, -i] for i in range(0, ROWS, 2)]})
    ds = opened(folder).select(["user"]).join(ages, on="user", prefix="u_")
    assert [feature.name for feature in ds.schema] == ["user", "click", "u_age", "u_seen"]
    for row in rows_of(ds.shuffle(seed=1, rows=100)):
        (user,) = row["user"]
        expected = ([NULL_ID], []) if user % 2 else ([user], [user, -user])
        assert (row["u_age"], row["u_seen"]) == expected


def test_a_join_works_without_its_key_among_the_features(folder):
    words = pa.table({"user": range(ROWS), "city": pa.array(["Bern", "Genf"] * 500).dictionary_encode()})
    ds = opened(folder).join(words, on="user").select(["city"])
    values = torch.cat([batch.ids["city"].values for batch in ds])
    assert values.tolist() == [as_id("Bern"), as_id("Genf")] * 500


def test_a_join_looks_up_the_default_of_an_absent_key(tmp_path):
    pq.write_table(pa.table({"item": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"item": [3], "user": [8]}), tmp_path / "b.parquet")
    ds = hr.data.parquet(tmp_path, batch_size=5)
    ds = ds.with_schema(ds.schema.edit("user", default=7)).join(pa.table({"user": [7, 8], "age": [70, 80]}), on="user")
    assert [row["age"] for row in rows_of(ds)] == [[70], [70], [80]]


def test_unmatched_rows_follow_the_policy_of_the_joined_column(folder):
    ds = opened(folder, ROWS).join(pa.table({"user": [0], "age": [5]}), on="user")
    with pytest.raises(ValueError, match=r"column 'age'.*row 1: a null"):
        list(ds.with_schema(ds.schema.edit("age", null="error")))
    (batch,) = ds.with_schema(ds.schema.edit("age", default=3))
    assert batch.ids["age"].values.tolist() == [5] + [3] * 999


BLOCKS = {"x": [[[1], [2, 3]], [[4], [5]]], "idx": [[0, 1, 0, 1], [0, 0, 1, 1]]}
RESTORED = [[1], [2, 3], [1], [2, 3], [4], [4], [5], [5]]


@pytest.mark.parametrize("batch_size", [1, 3, 8, 100])
def test_deduplicated_blocks_give_back_their_rows(tmp_path, batch_size):
    pq.write_table(pa.table(BLOCKS), tmp_path / "a.parquet", row_group_size=1)
    ds = hr.data.parquet(tmp_path, batch_size=batch_size).restore({"idx": ["x"]})
    got = list(ds)
    assert [row["x"] for row in rows_of(got)] == RESTORED
    assert got[0].ids.names == ("x",)
    assert ds.num_rows == 8
    assert [len(batch) for batch in got[:-1]] == [batch_size] * (len(got) - 1)


def test_a_short_last_block_makes_no_rows_of_its_own(tmp_path):
    blocks = {
        "at": [[0, 1, 0, 1], [], [0]],
        "user": [[7, 8], [], [9]],
        "tags": [[[1], [2, 2]], [], [[]]],
        "item": [[1, 2, 3, 4], [], [5]],
        "click": [[1, 0, 1, 0], [], [1]],
    }
    pq.write_table(pa.table(blocks), tmp_path / "a.parquet", row_group_size=2)
    ds = hr.data.parquet(tmp_path, batch_size=2).restore({"at": ["user", "tags"]}, label="click")
    rows = rows_of(ds)
    assert [tuple(row.values()) for row in rows] == [
        ([7], [1], [1], 1.0), ([8], [2, 2], [2], 0.0), ([7], [1], [3], 1.0), ([8], [2, 2], [4], 0.0),
        ([9], [], [5], 1.0),
    ]  # fmt: skip
    mixed = rows_of(ds.shuffle(seed=1, rows=3))
    assert sorted(map(str, mixed)) == sorted(map(str, rows))
    shards = flat(rows_of(ds.shard(rank, 3)) for rank in range(3))
    assert shards == rows
    running = rest_of(ds, 2)
    other = hr.data.parquet(tmp_path, batch_size=2).restore({"at": ["user", "tags"]}, label="click")
    other.load_state_dict(ds.state_dict())
    assert rows_of(other) == rows[4:] == rows_of(running)


def test_restored_rows_can_be_selected_split_and_joined_but_not_filtered():
    ds = hr.data.table(BLOCKS | {"user": [[1, 2, 1, 2], [3, 3, 4, 4]]}, batch_size=3).restore({"idx": ["x"]})
    assert [row["x"] for row in rows_of(ds.split(0.5)[1].select(["x"]))] == RESTORED[4:]
    joined = ds.join(pa.table({"user": [1, 2, 3, 4], "age": [10, 20, 30, 40]}), on="user").select(["age"])
    assert [row["age"] for row in rows_of(joined)] == [[10], [20], [10], [20], [30], [30], [40], [40]]
    with pytest.raises(ValueError, match="cannot see rows"):
        ds.where([("user", ">", 1)])
    with pytest.raises(ValueError, match="comes before"):
        hr.data.table(BLOCKS, batch_size=3).split(0.5)[0].restore({"idx": ["x"]})


# -- state ---------------------------------------------------------------------------------------------------


def variant(folder, shuffled, **options):
    ds = opened(folder, 60, **options)
    return ds.shuffle(seed=2, rows=200) if shuffled else ds


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_a_state_after_any_batch_gives_the_rest_bit_for_bit(folder, shuffled, prefetch):
    whole = list(variant(folder, shuffled))
    ds, states = variant(folder, shuffled, prefetch=prefetch, threads=2), []
    for _ in ds:
        states.append(json.loads(json.dumps(ds.state_dict())))
    for done, state in enumerate(states, 1):
        other = variant(folder, shuffled, prefetch=1 + done % 3, threads=1 + done % 2, memory=1 << 25)
        other.load_state_dict(state)
        assert equal_batches(list(other), whole[done:])


@pytest.mark.parametrize("by", ["rows", "batch"])
@pytest.mark.parametrize("uneven", ["empty", "stop"])
def test_the_state_is_the_same_on_all_ranks_and_each_goes_on(folder, by, uneven):
    ranks = [variant(folder, True).shard(rank, 3, by, uneven) for rank in range(3)]
    whole = [list(variant(folder, True).shard(rank, 3, by, uneven)) for rank in range(3)]
    running = [rest_of(ds, 3) for ds in ranks]
    states = [ds.state_dict() for ds in ranks]
    assert states[0] == states[1] == states[2]
    for rank in range(3):
        other = variant(folder, True).shard(rank, 3, by, uneven)
        other.load_state_dict(states[0])
        assert equal_batches(list(other), whole[rank][3:])
        assert equal_batches(list(running[rank]), whole[rank][3:])


def test_epochs_go_on_after_a_resumed_one(folder):
    ds = variant(folder, True)
    epochs = [read(ds) for _ in range(3)]
    ds.set_epoch(1)
    rest_of(ds, 5)
    other = variant(folder, True)
    other.load_state_dict(ds.state_dict())
    assert read(other) == epochs[1][300:]
    assert read(other) == epochs[2]


def test_a_state_between_epochs_begins_the_next(folder):
    ds, fresh = variant(folder, True), variant(folder, True)
    fresh_state = fresh.state_dict()
    first, second = read(ds), None
    state = ds.state_dict()
    second = read(ds)
    other = variant(folder, True)
    other.load_state_dict(state)
    assert read(other) == second
    other.load_state_dict(fresh_state)
    assert read(other) == first


def test_a_state_after_the_last_batch_leaves_nothing_of_its_epoch(folder):
    ds = variant(folder, False)
    running = rest_of(ds, len(ds))
    other = variant(folder, False)
    other.load_state_dict(ds.state_dict())
    assert (read(other), next(running, None)) == ([], None)
    assert read(other) == list(range(ROWS))


def test_the_newest_iterator_tells_the_state(folder):
    ds = variant(folder, False)
    old = rest_of(ds, 2)
    new = rest_of(ds, 5)
    next(old)
    assert ds.state_dict()["position"]["eras"][-1]["steps"] == 5
    list(old)
    assert ds.state_dict()["position"]["eras"][-1]["steps"] == 5
    next(new)
    assert ds.state_dict()["position"]["eras"][-1]["steps"] == 6


def test_closing_an_iterator_leaves_the_state_where_it_was(folder):
    ds = variant(folder, False)
    running = rest_of(ds, 4)
    running.close()
    assert next(running, "over") == "over"
    other = variant(folder, False)
    other.load_state_dict(ds.state_dict())
    assert read(other) == list(range(240, ROWS))


worlds = st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(0, 4), st.sampled_from(["rows", "batch"]))


@given(st.lists(worlds, min_size=1, max_size=4), st.booleans(), st.integers(1, 90))
def test_chains_of_worlds_see_each_row_exactly_once(eras, shuffled, window):
    source = hr.data.table(table(150), batch_size=1, threads=1).where([("user", "!=", 77)])
    source = source.shuffle(seed=window, rows=window) if shuffled else source
    seen, state, left = [], None, 149
    for world, batch_size, steps, by in [*eras, (2, 50, 10**9, "rows")]:
        ranks = [source.batch(batch_size).shard(rank, world, by=by) for rank in range(world)]
        running = []
        for ds in ranks:
            if state is not None:
                ds.load_state_dict(state)
            running.append(iter(ds))
        while steps and left:  # not beyond the last row: that would begin the next epoch
            step = read(next(ranks) for ranks in running)
            seen, left, steps = seen + step, left - len(step), steps - 1
        state = ranks[0].state_dict()
        assert all(ds.state_dict() == state for ds in ranks)
    assert sorted(seen) == [user for user in range(150) if user != 77]


@pytest.mark.parametrize(
    "other",
    [
        lambda ds: ds.where([("user", "<", 500)]),
        lambda ds: ds.split(0.5)[0],
        lambda ds: ds.split(0.5, seed=1)[0],
    ],
    ids=["where", "split", "seeded split"],
)
def test_a_state_of_other_rows_is_refused(folder, other):
    ds = variant(folder, False)
    for one, two in ((ds, other(ds)), (other(ds), ds)):
        with pytest.raises(ValueError, match="the state is of other data: fingerprint"):
            one.load_state_dict(two.state_dict())


def test_a_state_of_other_files_is_refused(folder, tmp_path):
    pq.write_table(table(), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match="the state is of other data"):
        opened(tmp_path).load_state_dict(opened(folder).state_dict())


@pytest.mark.parametrize("mine", [{"seed": 2}, {"seed": 1, "rows": 50}, {"seed": 1, "lanes": 3}, None])
def test_a_state_of_another_shuffle_is_refused(folder, mine):
    state = opened(folder).shuffle(seed=1, rows=100, lanes=2).state_dict()
    ds = opened(folder) if mine is None else opened(folder).shuffle(**mine)
    with pytest.raises(ValueError, match=r"the state was made under Shuffle\(seed=1, rows=100, lanes=2\)"):
        ds.load_state_dict(state)


@pytest.mark.parametrize("change", [{"version": 2}, {"more": 1}, {"version": None}])
def test_a_state_of_another_format_is_refused(folder, change):
    ds = opened(folder)
    with pytest.raises(ValueError, match="not a dataset state of version 1"):
        ds.load_state_dict(ds.state_dict() | change)
    with pytest.raises(ValueError, match="found 'list'"):
        ds.load_state_dict([])


def test_a_shuffle_chosen_by_memory_goes_on_with_its_own_window(folder):
    ds = opened(folder, 60, memory=1 << 20).shuffle(seed=3)
    whole = read(ds)
    ds.set_epoch(0)
    rest_of(ds, 3)
    other = opened(folder, 60, memory=1 << 30, threads=1).shuffle(seed=3)
    other.load_state_dict(ds.state_dict())
    assert read(other) == whole[180:]


def test_an_epoch_that_cannot_begin_leaves_the_place_alone(folder):
    ds = opened(folder, 60).shuffle(seed=1, rows=500)
    rest_of(ds, 3)
    tight = opened(folder, 60, memory=1000).shuffle(seed=1)
    tight.load_state_dict(ds.state_dict())
    lacking = tight.with_schema(Schema([*tight.schema, Feature("Z", "id", pa.int64())]))
    lacking.load_state_dict(ds.state_dict())
    for _ in range(2):
        with pytest.raises(ValueError, match="no column named 'Z'"):
            iter(lacking)
    assert lacking._cursor.next == tight._cursor.next


def test_a_copied_dataset_has_a_place_of_its_own(folder):
    ds = variant(folder, False)
    other = copy.deepcopy(ds)
    rest_of(ds, 3)
    assert other.state_dict()["position"]["eras"][-1]["steps"] == 0
    assert read(other) == list(range(ROWS))
