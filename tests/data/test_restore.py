from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.restore import Restore

LISTS = st.sampled_from([pa.list_, pa.large_list])
USER = Restore([("user_at", ["age", "history"])])


def deduplicated(rows: list[dict], groups: dict[str, list[str]], size: int) -> dict[str, list]:
    """Rows written as blocks of `size`, the unique ones of each group once per block."""
    plain = [name for name in rows[0] if all(name not in names for names in groups.values())]
    blocks: dict[str, list] = {name: [] for name in [*rows[0], *groups]}
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        for name in plain:
            blocks[name].append([row[name] for row in block])
        for index, names in groups.items():
            keys = [tuple(repr(row[name]) for name in names) for row in block]
            unique = sorted(set(keys))
            firsts = [block[keys.index(key)] for key in unique]
            blocks[index].append([unique.index(key) for key in keys])
            for name in names:
                blocks[name].append([row[name] for row in firsts])
    return blocks


@given(st.data())
def test_restored_rows_are_the_rows_that_were_deduplicated(data):
    row = st.fixed_dictionaries(
        {
            "age": st.none() | st.integers(0, 3),
            "history": st.none() | st.lists(st.integers(0, 2), max_size=2),
            "item": st.none() | st.sampled_from("ab"),
            "click": st.integers(0, 1),
        }
    )
    rows = data.draw(st.lists(row, min_size=1, max_size=20))
    blocks = deduplicated(rows, {"user_at": ["age", "history"], "item_at": ["item"]}, data.draw(st.integers(1, 8)))
    kinds = {"age": pa.int8(), "history": pa.list_(pa.int64()), "item": pa.string(), "click": pa.int32()}
    kinds |= {"user_at": pa.uint16(), "item_at": pa.int64()}
    batch = pa.record_batch({n: pa.array(v, data.draw(LISTS)(kinds[n])) for n, v in blocks.items()})
    restore = Restore([("user_at", ["age", "history"]), ("item_at", "item")])
    result = restore(batch)
    result.validate(full=True)
    assert result.to_pylist() == rows
    assert result.schema.equals(restore.output(batch.schema))
    assert sum(restore.rows(batch["user_at"])) == len(rows)

    cut = data.draw(st.integers(0, batch.num_rows))  # blocks from the middle of a chunk
    skipped = int(restore.rows(batch["user_at"])[:cut].sum())
    assert restore(batch.slice(cut)).to_pylist() == rows[skipped:]


def test_fixed_size_lists_can_be_blocks():
    batch = pa.record_batch(
        {
            "user_at": pa.array([[1, 1], [0, 1]], pa.list_(pa.int8(), 2)),
            "age": pa.array([[5, 6], [7, 8]], pa.list_(pa.int64(), 2)),
            "click": pa.array([[1, 0], [0, 1]], pa.list_(pa.int64(), 2)),
        }
    )
    assert USER(batch).to_pydict() == {"age": [6, 6, 7, 8], "click": [1, 0, 0, 1]}


def test_a_null_list_is_null_in_each_row_of_its_block():
    batch = pa.record_batch({"user_at": [[0, 0], [0]], "age": [None, [4]], "click": [[1, 0], None]})
    assert USER(batch).to_pydict() == {"age": [None, None, 4], "click": [1, 0, None]}


def test_a_column_that_the_file_lacks_is_all_null():
    batch = pa.record_batch({"user_at": [[0, 0], [1]], "age": pa.nulls(2, pa.list_(pa.int8()))})
    assert USER(batch)["age"].to_pylist() == [None] * 3


def test_empty_blocks_and_no_blocks_give_no_rows():
    batch = pa.record_batch({"user_at": [[], [0]], "age": [[], [4]], "click": [[], [1]]})
    assert USER(batch).to_pydict() == {"age": [4], "click": [1]}
    assert USER(batch.slice(0, 1)).num_rows == 0
    assert USER(batch.slice(0, 0)).to_pydict() == {"age": [], "click": []}


def test_rows_are_counted_from_the_index_column_alone():
    assert Restore.rows(pa.array([[0], [], [1, 0, 1]]).slice(1)).tolist() == [0, 3]


def test_reading_some_columns_needs_their_index_columns_only():
    restore = Restore([("a_at", ["a1", "a2"]), ("b_at", ["b"])])
    assert restore.needs(["b", "click"]) == ["b", "click", "b_at"]
    assert restore.needs(["click"]) == ["click", "a_at"]
    assert restore.needs(["b", "a2"]) == ["b", "a2", "a_at", "b_at"]
    batch = pa.record_batch({"b_at": [[0, 0]], "b": [[7]], "click": [[1, 0]]})
    assert restore(batch).to_pydict() == {"b": [7, 7], "click": [1, 0]}


@pytest.mark.parametrize("index", [2, -1])
def test_an_index_outside_the_unique_rows_is_named_with_its_block(index):
    batch = pa.record_batch({"user_at": [[0], [], [0, index]], "age": [[1], [], [1, 2]]})
    with pytest.raises(ValueError, match=rf"block 2, column 'age': index {index} of 'user_at' is outside its 2 unique"):
        USER(batch)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"click": [[1], [1, 0, 1]]},
            "block 1, column 'click' has 3 items where index column 'user_at' has 2",
        ),
        (
            {"age": [[1], [1, 2]], "history": [[[]], [[], [], []]]},
            "block 1, column 'history' has 3 .* 'age' has 2",
        ),
        ({"age": [[1], [1, 2]], "user_at": [[0], None]}, "block 1 has a null index list"),
        (
            {"age": [[1], [1, 2]], "user_at": [[0], [0, None]]},
            "block 1, index column 'user_at': an index is null",
        ),
    ],
)
def test_blocks_that_disagree_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        USER(pa.record_batch({"user_at": [[0], [0, 1]]} | columns))


def test_index_columns_that_disagree_are_refused():
    restore = Restore([("a_at", ["a"]), ("b_at", ["b"])])
    batch = pa.record_batch({"a_at": [[0, 0]], "a": [[1]], "b_at": [[0]], "b": [[1]]})
    with pytest.raises(ValueError, match="block 0, column 'b_at' has 1 items where index column 'a_at' has 2"):
        restore(batch)


def test_columns_that_are_no_lists_are_refused():
    with pytest.raises(TypeError, match="'click' is int64; in deduplicated data every column is a list"):
        USER(pa.record_batch({"user_at": [[0]], "click": [1]}))
    with pytest.raises(TypeError, match="list of integers, not list"):
        Restore.rows(pa.array([["a"]]))
    with pytest.raises(TypeError, match="list of integers, not int64"):
        Restore.rows(pa.array([1]))


def test_columns_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"no column 'history' to restore; the data has 'user_at', 'age'"):
        USER.output(pa.schema({"user_at": pa.list_(pa.int8()), "age": pa.list_(pa.int8())}))
    with pytest.raises(ValueError, match="index column 'user_at' of age, history was not read"):
        USER(pa.record_batch({"age": [[1]]}))
    with pytest.raises(ValueError, match="no index column was read; one of user_at is needed"):
        USER(pa.record_batch({"click": [[1]]}))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "at least one"),
        ([("at", [])], "index column 'at' has no value columns"),
        ([("at", ["a"]), ("to", ["a"])], "'a' stands twice"),
        ([("at", ["at"])], "'at' stands twice"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        Restore(groups)
