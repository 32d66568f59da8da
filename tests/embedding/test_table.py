from __future__ import annotations

import pickle
import re
from dataclasses import replace

import pytest
import torch

from hybridrec.embedding import LFU, LRU, TTL, Constant, MinCount, MultiHash, Probability, Table, Uniform
from hybridrec.embedding.table import WHERE
from hybridrec.parallel import plan


def test_a_fixed_table_has_these_defaults():
    table = Table("item", 8, rows=10)
    assert (table.features, table.combiners) == (("item",), {"item": "sum"})
    assert (table.out_of_range, table.eviction, table.admission) == ("error", None, None)
    assert (table.init, table.dtype, table.trainable) == (Uniform(0.05), torch.float32, True)
    assert (table.dynamic, table.fixed_rows, table.group) == (False, 10, 1)


def test_a_dynamic_table_evicts_by_last_use_unless_told_otherwise():
    table = Table("user", 8, capacity=10)
    assert (table.dynamic, table.eviction, table.out_of_range) == (True, LRU(), None)
    assert Table("user", 8, capacity=10, eviction="lfu").eviction == LFU()
    assert Table("user", 8, capacity=10, eviction=TTL(5)).eviction == TTL(5)
    assert Table("user", 8, capacity=10, eviction=None).eviction is None


def test_a_multi_hash_table_has_its_rows_from_rounds_and_size():
    table = Table("query", 8, hashes=MultiHash(3, 100), combiner="mean")
    assert (table.dynamic, table.fixed_rows, table.group) == (False, 300, 3)


def test_combiners_may_differ_by_feature():
    table = Table("item", 8, rows=10, features=["a", "b"], combiner={"b": "none", "a": "max"})
    assert table.combiners == {"a": "max", "b": "none"}


@pytest.mark.parametrize(
    "table",
    [
        Table("item", 8, rows=10),
        Table("user", 8, capacity=10, eviction=None, admission=MinCount(2)),
        Table("query", 8, hashes=MultiHash(2, 10), features=["a", "b"], combiner={"a": "sum", "b": "mean"}),
    ],
)
def test_tables_are_values_that_can_be_changed_and_sent(table):
    assert pickle.loads(pickle.dumps(table)) == table
    assert replace(table, dim=9).dim == 9
    assert replace(table, dim=9) != table
    assert hash(replace(table)) == hash(table)


def test_repr_shows_what_was_chosen_and_no_more():
    assert repr(Table("item", 8, rows=10)) == "Table('item', dim=8, rows=10)"
    assert repr(Table("u", 4, capacity=9, eviction=None)) == "Table('u', dim=4, capacity=9, eviction=None)"
    assert repr(Table("u", 4, capacity=9, eviction="lru")) == "Table('u', dim=4, capacity=9)"
    assert "out_of_range='zero'" in repr(Table("i", 4, rows=9, out_of_range="zero"))
    assert repr(Table("i", 4, rows=9, where="host")) == "Table('i', dim=4, rows=9, where='host')"


def test_rows_live_where_a_table_says_in_the_words_of_a_plan():
    assert [Table("i", 4, capacity=9, where=where).on_host for where in (None, *WHERE)] == [False, False, True, True]
    with pytest.raises(ValueError, match="table 'i': where is 'disk'; valid are 'device', 'host', 'server', and None"):
        Table("i", 4, rows=9, where="disk")
    assert plan.WHERE == WHERE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "table 't' has no size; give one of rows="),
        ({"rows": 1, "capacity": 1}, "table 't' has rows and capacity; give one of"),
        ({"rows": 1, "hashes": MultiHash(1, 1)}, "has rows and hashes"),
        ({"rows": 0}, "table 't': rows is 0; it must be from 1"),
        ({"rows": 2**32 - 1}, "rows is 4294967295; it must be from 1 to 4294967294"),
        ({"capacity": 0}, "table 't': capacity is 0; it must be from 1"),
        ({"hashes": MultiHash(2, 2**31)}, "rounds * size of hashes is 4294967296"),
        ({"rows": 1, "dim": 0}, "table 't': dim is 0; it must be from 1"),
        ({"rows": 1, "features": ["a", "b", "a"]}, "features a appear more than once"),
        ({"rows": 1, "combiner": "avg"}, "combiner is 'avg'; valid are sum, mean, sqrtn, max, none"),
        ({"rows": 1, "combiner": {"x": "sum"}}, "combiner names 'x', which is no feature; those are t"),
        ({"rows": 1, "features": ["a", "b"], "combiner": {"a": "sum"}}, "combiner leaves out b"),
        ({"rows": 1, "combiner": {"t": "avg"}}, "combiner is 'avg'"),
        ({"rows": 1, "out_of_range": "wrap"}, "out_of_range is 'wrap'; valid are 'error', 'hash', 'zero'"),
        ({"rows": 1, "eviction": "lru"}, "has fixed rows and no eviction; give capacity= in place of rows="),
        ({"rows": 1, "admission": MinCount(2)}, "has fixed rows and no admission"),
        ({"capacity": 1, "out_of_range": "error"}, "is dynamic and takes any id; leave out_of_range out"),
        ({"capacity": 1, "eviction": "oldest"}, "eviction is 'oldest'"),
        ({"capacity": 1, "admission": 0.5}, "admission is 0.5"),
        ({"hashes": MultiHash(1, 1), "out_of_range": "zero"}, "hashes every id, so none is out of range"),
        ({"hashes": MultiHash(1, 1), "combiner": "max"}, "combiner 'max' has no meaning for hashes="),
        ({"hashes": MultiHash(1, 1), "eviction": LRU()}, "has fixed rows and no eviction"),
        ({"rows": 1, "dtype": torch.float64}, "dtype is torch.float64; valid are torch.float32, torch.float16"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Table("t", **({"dim": 4} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "a table's name must be a string that is not empty, got ''"),
        ({"name": 3}, "got 3"),
        ({"rows": 1.5}, "table 't': rows is 1.5; it must be a whole number"),
        ({"dim": True}, "dim is True"),
        ({"features": "clicks"}, "features is the string 'clicks'; it must be a list, such as ['clicks']"),
        ({"features": [1]}, "features holds 1; it must hold names"),
        ({"combiner": ["sum"]}, "combiner is ['sum']; it must be a name, or names by feature"),
        ({"init": 0.1}, "init is 0.1; valid are Uniform(scale), Normal(std), Constant(value)"),
        ({"hashes": 3, "rows": None}, "hashes is 3; it must be MultiHash(rounds, size)"),
        ({"trainable": 1}, "trainable is 1; it must be True or False"),
    ],
)
def test_values_of_the_wrong_type_are_refused(options, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        Table(**({"name": "t", "dim": 4, "rows": 1} | options))


def test_probability_and_constant_are_accepted_where_they_belong():
    table = Table("u", 4, capacity=5, admission=Probability(0.5), init=Constant(1))
    assert (table.admission, table.init) == (Probability(0.5), Constant(1.0))


def test_a_path_is_for_dynamic_tables_and_puts_them_on_the_host(tmp_path):
    assert Table("user", 4, capacity=9, path=tmp_path).path == str(tmp_path)
    assert Table("user", 4, capacity=9, path="rows").on_host
    with pytest.raises(ValueError, match="table 'item' has fixed rows, which lie in memory; give capacity= with path="):
        Table("item", 4, rows=9, path="rows")
    cold = Table("item", 4, rows=9, cache=3, path=tmp_path)
    assert (cold.path, cold.on_host) == (str(tmp_path), False)
    with pytest.raises(ValueError, match="table 'user' has a path, so it lives on the host; leave where= out"):
        Table("user", 4, capacity=9, path="rows", where="device")
    for wrong in (7, ""):
        with pytest.raises(TypeError, match=r"table 'user': path is .*; it must name a directory"):
            Table("user", 4, capacity=9, path=wrong)  # pyright: ignore[reportArgumentType]


def test_a_cache_has_no_more_rows_than_its_table():
    said = r"table 'i': cache is 1,000, and the table has 999 rows, .*; leave it out to have all of them on the GPU"
    with pytest.raises(ValueError, match=said):
        Table("i", 4, rows=999, cache=1000)
    assert Table("i", 4, rows=1000, cache=1000).cached(1000) == 1000


@pytest.mark.parametrize("cache", [0, -1, 0.0, 1.5, True, "half"])
def test_a_cache_is_a_number_of_rows_or_a_share_of_them(cache):
    with pytest.raises(ValueError, match=r"table 'i': cache is .*; it must be a number of rows, or a share of them"):
        Table("i", 4, rows=9, cache=cache)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"capacity": 9}, "cache= is for tables with rows="),
        ({"rows": 9, "where": "host"}, "lives on the host, and a cache is on a GPU"),
    ],
)
def test_a_cache_goes_with_fixed_rows_on_the_device(options, reason):
    with pytest.raises(ValueError, match=reason):
        Table("i", 4, cache=0.5, **options)


def test_cold_rows_are_kept_in_the_type_of_the_table_or_in_another():
    assert Table("i", 4, rows=9, cache=5).cold_dtype == torch.float32
    assert Table("i", 4, rows=9, cache=5, dtype=torch.float16).cold_dtype == torch.float16
    assert Table("i", 4, rows=9, cache=5, cold=torch.int8).cold_dtype == torch.int8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cache": 5, "cold": "int8"}, "cold is 'int8'; valid are torch.float32, .*torch.int8, and None"),
        ({"cache": 5, "cold": torch.int32}, "cold is torch.int32; valid are torch.float32"),
        ({"cold": torch.int8}, "cold is torch.int8, but without a cache no row is cold; give cache= too"),
        (
            {"cache": 5, "cold": torch.int8, "dtype": torch.bfloat16},
            "cold is torch.int8, but rows of torch.bfloat16 are kept as they are; leave out cold= or dtype=",
        ),
    ],
)
def test_a_type_that_cold_rows_cannot_have_is_refused(options, reason):
    with pytest.raises(ValueError, match=f"table 'i': {reason}"):
        Table("i", 4, rows=9, **options)
