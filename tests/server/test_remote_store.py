"""Rows on servers are rows of a store: whatever is done to them, they are what the reference store holds."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.embedding import Constant, Normal, Table
from hybridrec.embedding.hash_store import HashStore
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from hybridrec.server.client import Session
from hybridrec.server.remote_store import RemoteStore
from tests.embedding.test_store import DYNAMIC, IDS, agree, operations
from tests.server.direct import direct, store_on

ADAGRAD = RowRule("adagrad", (StateColumn("sum", fill=0.5),))


ANY = st.sampled_from(DYNAMIC)


@settings(max_examples=20)
@given(options=ANY, todo=operations(IDS), capacity=st.integers(1, 6))
def test_a_table_on_a_server_agrees_with_the_reference_store(options, todo, capacity):
    agree(store_on(1), Table("user", 3, capacity=capacity, init=Normal(0.1), **options), todo)


@settings(max_examples=10)
@given(dtype=st.sampled_from([torch.float16, torch.bfloat16]), options=ANY, todo=operations(IDS))
def test_a_table_on_three_servers_agrees_where_none_of_them_is_full(dtype, options, todo):
    agree(store_on(3), Table("user", 3, capacity=60, dtype=dtype, **options), todo)


@pytest.mark.slow
@pytest.mark.parametrize("options", DYNAMIC, ids=str)
@given(todo=operations(IDS), capacity=st.integers(1, 6))
def test_every_policy_agrees_with_the_reference_store_for_longer(options, todo, capacity):
    agree(store_on(1), Table("user", 3, capacity=capacity, init=Normal(0.1), **options), todo)


def filled(kind: type, table: Table, ids: int = 50) -> tuple:
    """A store with rows that were trained, and its ids."""
    store = kind(table, 3)
    store.attach(ADAGRAD)
    wanted = torch.arange(ids) * 7919 - 100
    for step in (1, 2):
        slots = store.prepare(wanted[: ids // step], train=True)
        store.update(slots, torch.ones(len(slots), table.dim), RowStep(rule=ADAGRAD, lr=0.5, step=step))
    return store, wanted


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_one_number_of_servers_held_another_one_holds_and_a_table_here_too(count):
    table = Table("user", 4, capacity=1000)
    old, _ = filled(HashStore, table)
    first, second, here = store_on(count)(table, 3), store_on(3)(table, 3), HashStore(table, 3)
    with old.capture() as held:
        first.restore(held)
    with first.capture() as held:
        assert held.most == 50
        second.restore(held)
    with second.capture() as held:
        here.restore(held)
    for store in (first, second, here):
        assert store.rule == ADAGRAD
        assert store.clock == old.clock == 2
        for mine, wanted in zip(store.export()[:2], old.export()[:2], strict=True):
            assert torch.equal(mine, wanted)
        assert torch.equal(store.export().state["sum"], old.export().state["sum"])
        assert torch.equal(store.export().touched, old.export().touched)


def test_a_capture_is_of_its_moment_though_rows_change_afterwards():
    store, ids = filled(store_on(2), Table("user", 4, capacity=1000))
    before = store.export()
    with store.capture() as held:
        slots = store.prepare(ids, train=True)
        store.update(slots, torch.ones(len(slots), 4), RowStep(rule=ADAGRAD, lr=0.5, step=3))
        found = torch.cat([part.rows[part.ids.argsort()] for part in held.chunks(8)])
    assert torch.equal(found.sort(0).values, before.rows.sort(0).values)
    assert not torch.equal(store.export().rows, before.rows)


def test_an_empty_capture_has_one_chunk_without_rows():
    store = store_on(2)(Table("user", 4, capacity=10))
    with store.capture() as held:
        [chunk] = held.chunks()
    assert (len(chunk.ids), list(chunk.rows.shape)) == (0, [0, 4])


def test_rows_that_do_not_exist_are_named():
    store, _ = filled(store_on(2), Table("user", 4, capacity=1000))
    with pytest.raises(ValueError, match=r"^table 'user' has no row for id 3; ids\(\) has those it holds$"):
        store.read(torch.tensor([3]))


def test_empty_is_as_at_the_very_beginning():
    store, _ = filled(store_on(2), Table("user", 4, capacity=1000))
    store.empty()
    assert (len(store), store.clock, store.rule) == (0, 0, None)


def test_a_step_of_another_rule_than_the_attached_one_is_refused():
    store, ids = filled(store_on(1), Table("user", 4, capacity=1000))
    slots = store.prepare(ids, train=True)
    with pytest.raises(ValueError, match=r"keeps state for .*adagrad.*attach it first"):
        store.update(slots, torch.ones(len(slots), 4), RowStep(rule=RowRule("sgd"), lr=0.5, step=3))


def test_gradients_that_are_not_finite_are_counted_or_refused():
    store = store_on(1)(Table("user", 2, capacity=10, init=Constant(2.0)))
    store.attach(RowRule("sgd"))
    slots = store.prepare(torch.tensor([1, 2]), train=True)
    grads = torch.tensor([[1.0, 1.0], [float("nan"), 1.0]])
    with pytest.raises(FloatingPointError, match="table 'user'"):
        store.update(slots, grads, RowStep(rule=RowRule("sgd"), lr=1.0, step=1, nan="raise"))
    store.update(slots, grads, RowStep(rule=RowRule("sgd"), lr=1.0, step=1))
    assert store.lookup(slots.ids).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert store.nan_rows == store.counters()["nan_rows"] == 1


def test_it_cannot_be_copied():
    store = RemoteStore(Table("user", 2, capacity=10), 0, Session(direct(1), 1))
    with pytest.raises(TypeError, match=r"copy the model before hybridrec\.shard"):
        pickle.dumps(store)
