from __future__ import annotations

import pyarrow as pa
import pytest
import torch

import hybridrec as hr
from hybridrec.data import Bucketize, Hash, Modulo, Schema, Truncate, Vocabulary
from hybridrec.embedding import LFU, Constant, MinCount
from hybridrec.models import tables_of, wide_tables
from hybridrec.models.tables import CAPACITY, fixed_rows

COLUMNS = pa.schema(
    {
        "user": pa.int64(),
        "item": pa.int64(),
        "seen": pa.list_(pa.int64()),
        "pair": pa.list_(pa.int64(), 2),
        "age": pa.float32(),
        "click": pa.int8(),
    }
)
SCHEMA = Schema.infer(COLUMNS, label="click")


def by_name(*args, **options) -> dict[str, hr.Table]:
    return {table.name: table for table in tables_of(*args, **options)}


def test_every_id_feature_has_a_dynamic_table_of_its_own_name():
    tables = by_name(SCHEMA, 8)
    assert list(tables) == ["user", "item", "seen", "pair"]
    assert {table.capacity for table in tables.values()} == {CAPACITY}
    assert {table.dim for table in tables.values()} == {8}


def test_lists_are_pooled_by_the_mean_and_sequences_not_at_all():
    tables = by_name(SCHEMA, 8, sequences=["seen"])
    assert [tables[name].combiners[name] for name in ("user", "seen", "pair")] == ["sum", "none", "mean"]


@pytest.mark.parametrize(
    ("transforms", "rows"),
    [
        ([Modulo(10)], 10),
        ([Hash(), Modulo(10)], 10),
        ([Modulo(10), Hash()], None),
        ([Bucketize([1, 2, 3])], 5),
        ([Vocabulary([4, 5])], 3),
        ([Vocabulary([4, 5], oov=9)], 10),
        ([Vocabulary([4, 5], oov=-1)], None),
        ([Vocabulary([4, 5], oov="error")], 3),
        ([Hash()], None),
        ([], None),
    ],
    ids=str,
)
def test_transforms_that_bound_the_ids_fix_the_rows(transforms, rows):
    schema = SCHEMA.edit("item", transforms=transforms)
    assert fixed_rows(schema["item"]) == rows
    table = by_name(schema, 8)["item"]
    assert table.rows == rows
    assert table.capacity == (CAPACITY if rows is None else None)


def test_truncating_a_list_bounds_no_id_but_hides_no_bound():
    assert fixed_rows(SCHEMA.edit("seen", transforms=[Modulo(10), Truncate(3)])["seen"]) == 10
    assert fixed_rows(SCHEMA.edit("seen", transforms=[Truncate(3)])["seen"]) is None


@pytest.mark.parametrize("buckets", [None, 100])
def test_a_cross_has_as_many_rows_as_buckets(buckets):
    assert fixed_rows(SCHEMA.cross("user", "item", buckets=buckets)["user_x_item"]) == buckets


def test_a_null_in_a_fixed_table_is_missing_not_an_error():
    ds = hr.data.table({"item": [1, None]}, batch_size=2)
    ds = ds.with_schema(ds.schema.edit("item", transforms=[Modulo(10)]))
    emb = hr.EmbeddingCollection(tables_of(ds.schema, 4))
    known, missing = emb(next(iter(ds)).ids).flat
    assert known.any()
    assert not missing.any()


def test_features_share_the_table_of_another():
    tables = by_name(SCHEMA, 8, share={"seen": "item", "pair": "item"})
    assert list(tables) == ["user", "item"]
    assert tables["item"].combiners == {"item": "sum", "seen": "mean", "pair": "mean"}


def test_a_shared_table_is_fixed_only_if_all_its_features_are_bounded():
    schema = SCHEMA.edit("item", transforms=[Modulo(10)])
    assert by_name(schema, 8, share={"seen": "item"})["item"].dynamic
    schema = schema.edit("seen", transforms=[Modulo(20)])
    assert by_name(schema, 8, share={"seen": "item"})["item"].rows == 20


def test_options_go_to_the_table_they_name_and_a_star_to_all_others():
    options = {
        "*": {"capacity": 50, "eviction": "lfu"},
        "user": {"capacity": 9, "dim": 2, "admission": {"kind": "MinCount", "k": 2}, "dtype": "float16"},
    }
    tables = by_name(SCHEMA, 8, options=options)
    user, item = tables["user"], tables["item"]
    assert (user.capacity, user.dim, user.dtype, user.admission) == (9, 2, torch.float16, MinCount(2))
    assert (item.capacity, item.dim, item.eviction, user.eviction) == (50, 8, LFU(), LFU())


def test_options_for_all_dynamic_tables_leave_fixed_ones_alone():
    schema = SCHEMA.edit("item", transforms=[Modulo(10)]).edit("seen", transforms=[Modulo(10)])
    options = {"*": {"capacity": 50, "admission": MinCount(2), "dtype": "float16"}, "user": {"rows": 30}}
    tables = by_name(schema, 8, options={**options, "seen": {"capacity": 7}})
    assert {name: (table.rows, table.capacity, table.admission) for name, table in tables.items()} == {
        "user": (30, None, None),
        "item": (10, None, None),
        "seen": (None, 7, MinCount(2)),
        "pair": (None, 50, MinCount(2)),
    }
    assert {table.dtype for table in tables.values()} == {torch.float16}


def test_a_stated_size_wins_over_the_transforms():
    schema = SCHEMA.edit("item", transforms=[Modulo(10)])
    assert by_name(schema, 8, options={"item": {"capacity": 7}})["item"].capacity == 7
    assert by_name(schema, 8, options={"item": {"eviction": "lfu"}})["item"].capacity == CAPACITY


def test_a_combiner_for_a_table_leaves_sequences_alone():
    options = {"item": {"combiner": "max"}}
    table = by_name(SCHEMA, 8, share={"seen": "item"}, options=options, sequences=["seen"])["item"]
    assert table.combiners == {"item": "max", "seen": "none"}


def test_wide_tables_are_of_the_same_size_begin_at_zero_and_pool_everything():
    tables = tables_of(SCHEMA, 8, sequences=["seen"], options={"user": {"capacity": 9}})
    wide = {table.name: table for table in wide_tables(tables, 2)}
    assert list(wide) == ["wide.user", "wide.item", "wide.seen", "wide.pair"]
    assert wide["wide.user"].capacity == 9
    assert wide["wide.seen"].combiners == {"seen": "mean"}
    assert {(table.dim, table.init) for table in wide.values()} == {(2, Constant(0.0))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": {"seen": "movie"}}, "share names 'movie', which is no id feature; those are user, item"),
        ({"share": {"age": "item"}}, "share names 'age'"),
        ({"share": {"seen": "item", "item": "user"}}, "to 'item', which itself shares a table"),
        ({"options": {"movie": {}}}, "tables names 'movie', which is no table; those are user, item"),
        ({"options": {"user": {"size": 3}}}, "table 'user' has no option 'size'; it has dim, rows, capacity"),
    ],
    ids=str,
)
def test_names_that_do_not_exist_are_errors_with_those_that_do(arguments, message):
    with pytest.raises(ValueError, match=message):
        tables_of(SCHEMA, 8, **arguments)


def test_a_cache_for_all_is_for_tables_that_can_have_it():
    options = {
        "*": {"cache": 1000},
        "user": {"rows": 5000},
        "item": {"rows": 999},
        "pair": {"rows": 5000, "where": "host"},
    }
    assert {name: table.cache for name, table in by_name(SCHEMA, 8, options=options).items()} == {
        "user": 1000, "item": None, "seen": None, "pair": None,
    }  # fmt: skip
    options["*"] |= {"cold": torch.int8, "path": "rows"}
    found = by_name(SCHEMA, 8, options=options)
    assert {name for name, table in found.items() if table.path or table.cold} == {"user"}
    said = {"user": {"rows": 5000, "cache": 0.5, "cold": "int8"}}  # as the command line and a saved run have it
    assert by_name(SCHEMA, 8, options=said)["user"].cold == torch.int8
    with pytest.raises(ValueError, match="cache is 1,000, and the table has 999 rows"):
        tables_of(SCHEMA, 8, options={"item": {"rows": 999, "cache": 1000}})


def test_first_order_weights_of_a_table_on_disk_have_a_directory_beside_it(tmp_path):
    user, item = hr.Table("user", 8, capacity=9, path=tmp_path / "user"), hr.Table("item", 8, rows=9, cache=3, path="x")
    wide = wide_tables([user, item], 1)
    assert [table.path for table in wide] == [str(tmp_path / "wide.user"), "x"]
    emb = [hr.EmbeddingCollection([table]) for table in (user, wide[0])]
    for each, dim in zip(emb, (8, 1), strict=True):
        assert each({"user": torch.tensor([5])}).flat.shape == (1, dim)
