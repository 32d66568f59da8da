"""Fixed rows on servers are rows of a store: all of them are there, though servers hold only those that were used."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.embedding import MultiHash, Store, Table, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.policies import LFU
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from hybridrec.server.protocol import Kind
from hybridrec.server.remote_fixed_store import RemoteFixedStore
from hybridrec.server.remote_store import RemoteStore
from tests.embedding.test_store import SMALL, agree, assert_same, operations
from tests.server.direct import store_on

ADAGRAD = RowRule("adagrad", (StateColumn("sum", fill=0.5),))


def fixed_on(count: int) -> type[RemoteStore]:
    return store_on(count, RemoteFixedStore)


def held(store: RemoteStore) -> list[int]:
    """The ids whose rows are in the memory of servers."""
    return sorted(each for answer in store._told(Kind.IDS) for each in answer.array(0, "<i8", -1).tolist())


@settings(max_examples=20)
@given(policy=st.sampled_from(["hash", "zero"]), todo=operations(SMALL), count=st.integers(1, 3))
def test_a_fixed_table_on_servers_agrees_with_the_reference_store(policy, todo, count):
    agree(fixed_on(count), Table("item", 5, rows=7, init=Uniform(0.5), out_of_range=policy), todo)


@settings(max_examples=10)
@given(dtype=st.sampled_from([torch.float16, torch.bfloat16]), todo=operations(SMALL))
def test_so_does_one_of_half_precision(dtype, todo):
    agree(fixed_on(2), Table("item", 3, hashes=MultiHash(2, 4), dtype=dtype), todo)


def step_on(store: Store, ids: list[int], step: int = 1) -> None:
    slots = store.prepare(torch.tensor(ids), train=True)
    store.update(slots, torch.ones(len(slots), store.dim), RowStep(rule=ADAGRAD, lr=0.5, step=step))


def trained(kind: type[Store], table: Table) -> Store:
    store = kind(table, 3)
    store.attach(ADAGRAD)
    step_on(store, [2, 90, 41])
    return store


ITEM = Table("item", 4, rows=100)


def test_servers_hold_the_rows_that_were_trained_and_no_others():
    store = trained(fixed_on(2), ITEM)
    assert isinstance(store, RemoteStore)
    store.lookup(torch.arange(100))
    assert held(store) == [2, 41, 90]
    assert (len(store), store.ids().tolist()) == (100, list(range(100)))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_rows_come_out_and_go_into_a_table_here_and_other_servers(count):
    here = trained(DenseStore, ITEM)
    first, second, back = fixed_on(count)(ITEM, 3), fixed_on(3)(ITEM, 3), DenseStore(ITEM, 3)
    for store, before in ((first, here), (second, first), (back, second)):
        with before.capture() as now:
            assert now.most == 100
            assert all(len(part.ids) <= 9 for part in now.chunks(9))
        with before.capture() as now:
            store.restore(now)
        assert store.clock == here.clock == 1
        assert_same(tuple(store.export()[:2]), tuple(here.export()[:2]))
        assert torch.equal(store.export().state["sum"], here.export().state["sum"])
    assert held(first) == held(second) == [2, 41, 90], "the others have initial values, wherever they come from"


def test_a_capture_is_of_its_moment_though_rows_come_into_being_afterwards():
    store = trained(fixed_on(2), ITEM)
    before = store.export()
    with store.capture() as now:
        step_on(store, [3, 90], 2)
        parts = list(now.chunks(16))
    ids = torch.cat([part.ids for part in parts])
    assert torch.equal(ids.sort().values, torch.arange(100))
    assert torch.equal(torch.cat([part.rows for part in parts])[ids.argsort()], before.rows)
    assert torch.equal(torch.cat([part.state["sum"] for part in parts])[ids.argsort()], before.state["sum"])


def test_a_gradient_counts_though_its_row_was_forgotten_meanwhile():
    here, away = trained(DenseStore, ITEM), trained(fixed_on(2), ITEM)
    for store in (here, away):
        slots = store.prepare(torch.tensor([5, 90]), train=True)
        store.erase(torch.tensor([90]))
        store.update(slots, torch.ones(2, 4), RowStep(rule=ADAGRAD, lr=0.5, step=2))
    assert_same(tuple(here.export()[:2]), tuple(away.export()[:2]))


def test_ids_that_there_are_no_rows_of_are_refused_by_all():
    store = trained(fixed_on(2), ITEM)
    for ask in (store.lookup, store.read, lambda ids: store.prepare(ids, train=True)):
        with pytest.raises(ValueError, match=r"id 100 at position 1 is outside table 'item', 0 … 99"):
            ask(torch.tensor([3, 100]))
    with pytest.raises(ValueError, match=r"table 'item' has rows 0 … 99, and there is none of id -1"):
        store.erase(torch.tensor([-1]))
    with pytest.raises(ValueError, match="has rows 0 … 99, but id 100 is to be loaded"):
        store.load(torch.tensor([100]), torch.zeros(1, 4))
    zeros = fixed_on(2)(Table("item", 4, rows=100, out_of_range="zero"), 3)
    with pytest.raises(ValueError, match="table 'item' has no row for id 100"):
        zeros.read(torch.tensor([100]))


def test_a_table_of_four_billion_rows_takes_no_memory_before_it_is_used():
    table = Table("item", 1024, rows=2**32 - 2, out_of_range="hash")
    store = trained(fixed_on(2), table)
    assert store.lookup(torch.tensor([2**32 - 3, -7])).shape == (2, 1024)
    assert store.memory()["rows"] == 3 * 1024 * 4


def test_what_it_was_declared_as_is_named_where_another_trainer_says_otherwise():
    store = fixed_on(1)(ITEM, 3)
    with pytest.raises(ValueError, match=r"has rows 100, the trainer declares None"):
        _declare(store, Table("item", 4, capacity=100, eviction=LFU()))
    with pytest.raises(ValueError, match=r"has rows 100, the trainer declares 90"):
        _declare(store, Table("item", 4, rows=90))
    with pytest.raises(ValueError, match=r"has dtype 'float32', the trainer declares 'float16'"):
        _declare(store, Table("item", 4, rows=100, dtype=torch.float16))


def _declare(store: RemoteStore, table: Table) -> None:
    from hybridrec.server.client import Session
    from hybridrec.server.declared import declaration_of

    Session(store.session.servers, 2).attach(0, [declaration_of(table, 3)])
