"""Files that are truncated, not Parquet, damaged inside, or gone: an error with a name, or a counted loss."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from tests.data.oracle import flat, users


def write(path, start, rows=400):
    numbers = range(start, start + rows)
    table = pa.table({"user": numbers, "tags": [[i] * 5 for i in numbers], "word": [f"word {i}" for i in numbers]})
    pq.write_table(table, path, row_group_size=100, compression="zstd")


@pytest.fixture
def folder(tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}.parquet", i * 400)
    return tmp_path


def opened(folder, **options):
    return hr.data.parquet(folder, **({"batch_size": 64, "threads": 2} | options))


def read(ds):
    return flat(users(ds))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def replace_by_text(path):
    path.write_text("user,tags\n1,2\n" * 1000)


def empty(path):
    path.write_bytes(b"")


def without_columns(path):
    pq.write_table(pa.table({}), path)


def damage(path, group=2, column=0):
    """Other bytes in the middle of one column of one row group; the footer stays."""
    place = pq.read_metadata(path).row_group(group).column(column)
    start = min(place.dictionary_page_offset or place.data_page_offset, place.data_page_offset)
    data = bytearray(path.read_bytes())
    middle = start + place.total_compressed_size // 2
    data[middle - 40 : middle + 40] = b"\xff" * 80
    path.write_bytes(data)


OTHERS = [*range(400), *range(800, 1200)]


@pytest.mark.parametrize("harm", [truncate, replace_by_text, empty, without_columns])
def test_files_that_cannot_be_opened_are_named_or_left_out(folder, harm, caplog):
    harm(folder / "1.parquet")
    with pytest.raises(ValueError, match=r'1\.parquet: .*on_bad_file="skip"'):
        opened(folder)
    ds = opened(folder, on_bad_file="skip")
    assert ds.num_rows == 800
    with caplog.at_level(logging.WARNING, "hybridrec.data"):
        assert read(ds) == OTHERS
    assert [name.endswith("1.parquet") for name in ds.lost] == [True]


def test_damage_inside_a_row_group_is_named_with_file_and_row_group(folder):
    damage(folder / "1.parquet")
    got = []
    with pytest.raises(ValueError, match=r"1\.parquet, row group 2: ") as raised:
        got.extend(opened(folder, batch_size=50))
    assert raised.value.row_group == 2
    assert read(got) == list(range(600))


@pytest.mark.parametrize("shuffled", [False, True])
def test_skipping_reads_the_rest_and_counts_what_is_lost(folder, shuffled, caplog):
    damage(folder / "1.parquet")
    ds = opened(folder, on_bad_file="skip")
    ds = ds.shuffle(seed=1, rows=150) if shuffled else ds
    whole = [*range(600), *range(700, 1200)]
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "hybridrec.data"):
            assert sorted(read(ds)) == whole
    (name,) = ds.lost
    assert name.endswith("1.parquet")
    assert ds.lost[name] == 100
    assert "left out 100 rows of 1 bad files" in caplog.text


def test_ranks_keep_step_when_one_loses_rows(folder):
    damage(folder / "1.parquet")
    shards = [list(opened(folder, on_bad_file="skip").shard(rank, 3)) for rank in range(3)]
    assert {len(shard) for shard in shards} == {len(shards[0])}
    assert sorted(flat(map(read, shards))) == [*range(600), *range(700, 1200)]


def test_a_state_is_exact_in_spite_of_lost_rows(folder):
    damage(folder / "1.parquet")
    whole = users(opened(folder, on_bad_file="skip"))
    ds = opened(folder, on_bad_file="skip")
    running = iter(ds)
    before = [next(running) for _ in range(4)]
    other = opened(folder, on_bad_file="skip")
    other.load_state_dict(ds.state_dict())
    assert users(before) + users(other) == whole


def test_a_filter_over_damaged_rows_follows_the_same_policy(folder):
    damage(folder / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet, row group 2"):
        _ = opened(folder).where([("user", ">=", 100)]).num_rows
    ds = opened(folder, on_bad_file="skip").where([("user", ">=", 100)])
    assert read(ds) == [*range(100, 600), *range(700, 1200)]
    assert list(ds.lost.values()) == [100]
    first, second = opened(folder, on_bad_file="skip").split(500, by="user")
    assert (len(read(first)), len(read(second)), list(second.lost.values())) == (500, 600, [100])


def test_damage_in_a_column_that_is_not_read_does_no_harm(folder):
    damage(folder / "1.parquet", column=1)
    assert read(opened(folder).select(["user"])) == list(range(1200))


def test_a_file_that_vanishes_while_being_read_is_named_or_counted(folder):
    ds = opened(folder)
    (folder / "2.parquet").unlink()
    got = []
    with pytest.raises(ValueError, match=r"2\.parquet, row group 0: the file does not exist \(any more\)"):
        got.extend(ds)
    assert read(got) == list(range(768))
    write(folder / "2.parquet", 800)
    lossy = opened(folder, on_bad_file="skip")
    (folder / "2.parquet").unlink()
    assert read(lossy) == list(range(800))
    assert list(lossy.lost.values()) == [400]


def test_a_file_that_changes_while_being_read_is_named(folder):
    ds = opened(folder)
    write(folder / "1.parquet", 5000, rows=300)
    with pytest.raises(ValueError, match=r"1\.parquet, row group 0: it had \d+ bytes when indexed, now it has"):
        list(ds)


def test_data_of_which_nothing_can_be_read_is_an_error(tmp_path):
    replace_by_text(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="none of 1 files can be read"):
        opened(tmp_path, on_bad_file="skip")
