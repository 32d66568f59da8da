"""Every real file, read whole and compared with what pandas and pyarrow read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

import hybridrec as hr
from hybridrec.data import NULL_ID
from tests.data.oracle import expected_rows, rows_of, same

FILES = [
    "adult_census_income/train.parquet",
    "adult_census_income/test.parquet",
    "kuairand_pure_partial/log_20220425_20220430.parquet",
    "kuairand_pure_partial/log_20220501_20220508.parquet",
    "kuairand_pure_partial/user_features.parquet",
    "kuairand_pure_partial/user_history_sequences.parquet",
    "kuairand_pure_partial/video_features_basic.parquet",
]


@pytest.fixture
def kuairand(shared_data):
    return shared_data / "kuairand_pure_partial"


def test_no_real_file_is_forgotten(shared_data):
    assert sorted(str(path.relative_to(shared_data)) for path in shared_data.rglob("*.parquet")) == sorted(FILES)


def column(batches, name):
    """One feature of all batches: ids as values and lengths, numbers as they are."""
    ids = [batch.ids[name] for batch in batches]
    return torch.cat([part.values for part in ids]).numpy(), torch.cat([part.lengths() for part in ids]).numpy()


def hashed(array: pa.Array) -> np.ndarray:
    unique = array.unique().to_pylist()
    digests = {word: np.uint64(xxhash.xxh64_intdigest(word.encode(), seed=0)) for word in unique if word is not None}
    return np.array([NULL_ID if w is None else digests[w].astype(np.int64) for w in array.to_pylist()], np.int64)


@pytest.mark.parametrize("name", FILES)
def test_every_column_of_every_file_is_what_pyarrow_reads(shared_data, name):
    path = shared_data / name
    table = pq.read_table(path)
    ds = hr.data.parquet(path, batch_size=5000)
    for feature in ds.schema.of("extra"):
        if feature.null == "error":
            ds = ds.with_schema(ds.schema.edit(feature.name, default=0))
    batches = list(ds)
    assert sum(map(len, batches)) == table.num_rows
    for feature in ds.schema:
        stored = table[feature.name].combine_chunks()
        stored = stored.dictionary_decode() if pa.types.is_dictionary(stored.type) else stored
        if feature.kind == "dense":
            place = batches[0].dense_names.index(feature.name)
            got = torch.cat([batch.dense[:, place] for batch in batches]).numpy()
            expected = pc.fill_null(stored.cast(pa.float32(), safe=False), 0.0).to_numpy(zero_copy_only=False)
            assert np.array_equal(got, expected, equal_nan=True), feature.name
        elif feature.kind == "id" and not pa.types.is_list(stored.type):
            values, lengths = column(batches, feature.name)
            text = pa.types.is_string(stored.type) or pa.types.is_large_string(stored.type)
            expected = hashed(stored) if text else pc.fill_null(stored.cast(pa.int64()), NULL_ID).to_numpy()
            assert set(lengths) == {1}
            assert np.array_equal(values, expected), feature.name
        elif feature.kind == "id":
            values, lengths = column(batches, feature.name)
            assert np.array_equal(lengths, pc.fill_null(pc.list_value_length(stored), 0).to_numpy()), feature.name
            items = stored.flatten()
            assert np.array_equal(
                values, hashed(items) if pa.types.is_string(items.type) else items.cast(pa.int64()).to_numpy()
            )
        else:
            assert feature.kind in ("extra", "skip")


@pytest.mark.parametrize("name", FILES)
def test_the_first_rows_of_every_file_are_those_of_to_pylist(shared_data, name):
    table = pq.read_table(shared_data / name).slice(0, 300)
    ds = hr.data.table(table, batch_size=64)
    extra = [feature.name for feature in ds.schema.of("extra")]
    ds = ds.select([feature.name for feature in ds.schema if feature.name not in extra])
    assert same(rows_of(ds), expected_rows(table.to_pylist(), ds.schema))


def test_the_income_of_the_census_becomes_a_label(shared_data):
    adult = shared_data / "adult_census_income"
    shares = {}
    for part in ("train", "test"):
        ds = hr.data.parquet(adult / f"{part}.parquet", batch_size=4096)
        positive = hr.data.IsIn([">50K", ">50K."])
        ds = ds.with_schema(ds.schema.edit("income", kind="label", transforms=[positive]))
        labels = torch.cat([batch.label for batch in ds])
        frame = pq.read_table(adult / f"{part}.parquet", columns=["income"]).to_pandas()
        assert labels.numpy().tolist() == frame["income"].str.startswith(">50K").astype(float).tolist()
        shares[part] = labels.mean().item()
    assert 0.2 < shares["train"] < 0.3
    with pytest.raises(ValueError, match="label 'income' holds string"):
        hr.data.parquet(adult / "train.parquet", label="income", batch_size=1)


def test_features_and_histories_join_the_log(kuairand):
    log = kuairand / "log_20220501_20220508.parquet"
    features = pq.read_table(kuairand / "user_features.parquet")
    histories = pq.read_table(kuairand / "user_history_sequences.parquet")
    (history,) = [f.name for f in histories.schema if pa.types.is_list(f.type)][:1]
    whole = hr.data.parquet(log, label="is_click", batch_size=20_000)
    ds = whole.join(features, on="user_id", prefix="user_").join(histories.select(["user_id", history]), on="user_id")
    ds = ds.select(["user_id", "video_id", history])
    rows = pq.read_table(log, columns=["user_id", "video_id", "is_click"])
    at = {user: i for i, user in enumerate(histories["user_id"].to_pylist())}
    lists = histories[history].to_pylist()
    batches = list(ds)
    users = rows["user_id"].to_pylist()
    expected = [len(lists[at[user]] or []) if user in at else 0 for user in users]
    values, lengths = column(batches, history)
    assert lengths.tolist() == expected
    first = [item for user in users[:2000] if user in at for item in lists[at[user]] or []]
    assert values[: len(first)].tolist() == first
    assert torch.cat([batch.label for batch in batches]).tolist() == [float(x) for x in rows["is_click"].to_pylist()]


def test_the_log_splits_by_time(kuairand):
    log = [kuairand / "log_20220425_20220430.parquet", kuairand / "log_20220501_20220508.parquet"]
    ds = hr.data.parquet(log, label="is_click", batch_size=50_000)
    times = pa.concat_tables([pq.read_table(path, columns=["time_ms"]) for path in log])["time_ms"].to_numpy()
    border = int(np.median(times))
    before, after = ds.split(border, by="time_ms")
    assert (before.num_rows, after.num_rows) == (int((times < border).sum()), int((times >= border).sum()))
    assert all((batch.ids["time_ms"].values < border).all() for batch in before)


def test_shuffled_shards_of_the_log_hold_every_row_once(kuairand):
    path = kuairand / "log_20220425_20220430.parquet"
    ds = hr.data.parquet(path, batch_size=4096).select(["user_id", "video_id", "time_ms"]).shuffle(seed=7, rows=30_000)
    keys = []
    for rank in range(3):
        batches = list(ds.shard(rank, 3))
        columns = [column(batches, name)[0] for name in ("user_id", "video_id", "time_ms")]
        keys.append(np.stack(columns, 1))
    got = np.concatenate(keys)
    stored = pq.read_table(path, columns=["user_id", "video_id", "time_ms"]).to_pandas().to_numpy()
    assert np.array_equal(got[np.lexsort(got.T)], stored[np.lexsort(stored.T)])
    assert not np.array_equal(got, stored)
