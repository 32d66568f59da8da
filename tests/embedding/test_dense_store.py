from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch

from hybridrec.embedding import Normal, Table, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.share import Share
from hybridrec.optim.rule import RowRule, RowStep, StateColumn

ADAGRAD = RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True, fill=0.25),))


def test_weight_is_the_memory_of_the_rows():
    store = DenseStore(Table("item", 3, rows=5))
    store.weight[2] = 7
    assert store.lookup(torch.tensor([2])).tolist() == [[7, 7, 7]]
    store.load(torch.tensor([4]), torch.ones(1, 3))
    assert store.weight[4].tolist() == [1, 1, 1]
    assert store.weight.data_ptr() == store.weight.data_ptr()


def test_weight_outlives_the_store():
    weight = DenseStore(Table("item", 64, rows=4096)).weight
    expected = weight.clone()
    gc.collect()
    [DenseStore(Table("other", 64, rows=4096)) for _ in range(3)]
    assert torch.equal(weight, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_rows_are_viewed_as_halves(dtype):
    store = DenseStore(Table("item", 3, rows=5, dtype=dtype))
    assert store.weight.dtype == store.lookup(torch.tensor([1])).dtype == dtype
    assert torch.equal(store.lookup(torch.arange(5)), store.weight)
    store.weight[1] = 0.5
    assert store.lookup(torch.tensor([1])).tolist() == [[0.5] * 3]


def test_state_is_viewed_by_name():
    store = DenseStore(Table("item", 3, rows=5))
    store.attach(ADAGRAD)
    assert store.state("sum").tolist() == [0.25] * 5
    store.state("sum")[1] = 9
    assert store.read(torch.tensor([1])).state["sum"].tolist() == [9]
    store.clear()
    assert store.state("sum").tolist() == [0.25] * 5


def test_clearing_gives_the_initial_rows_back():
    store = DenseStore(Table("item", 3, rows=5), seed=4)
    before = store.weight.clone()
    store.weight.fill_(1)
    store.clear()
    assert torch.equal(store.weight, before)


def test_rows_are_dirty_from_the_step_that_may_have_changed_them():
    store = DenseStore(Table("item", 3, rows=5))
    store.attach(ADAGRAD)
    assert store.dirty(since=0).tolist() == []
    store.update(store.prepare(torch.tensor([1]), train=True), torch.ones(1, 3), RowStep(rule=ADAGRAD, lr=1, step=1))
    assert store.clock == 1
    assert store.dirty(since=0).tolist() == [0, 1, 2, 3, 4]
    assert store.dirty(since=1).tolist() == []


def test_a_gradient_that_is_not_finite_is_left_out_and_counted_or_raises():
    store = DenseStore(Table("item", 2, rows=5))
    store.attach(ADAGRAD)
    before = store.export()
    grads = torch.tensor([[1.0, float("nan")], [1.0, 1.0]])
    slots = store.prepare(torch.tensor([1, 3]), train=True)
    with pytest.raises(FloatingPointError, match="table 'item': some rows have a gradient that is not finite"):
        store.update(slots, grads, RowStep(rule=ADAGRAD, lr=1, step=1, nan="raise"))
    assert torch.equal(store.weight, before.rows)
    store.update(store.prepare(torch.tensor([1, 3]), train=True), grads, RowStep(rule=ADAGRAD, lr=1, step=1))
    assert (store.weight != before.rows).any(1).tolist() == [False, False, False, True, False]
    assert store.counters() == {"nan_rows": 1}


def test_memory_is_that_of_rows_and_state():
    store = DenseStore(Table("item", 4, rows=100))
    store.attach(ADAGRAD)
    memory = store.memory()
    assert (memory["rows"], memory["state"], memory["overhead_per_row"]) == (1600, 400, 0)


# -- shares of a table ------------------------------------------------------------------------------------

SHARES = [Share(), Share(2, 3), Share(column=3, width=2), Share(1, 2, 1, 5), Share(9, 10), Share(empty=True)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("init", [Uniform(), Normal()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_share_begins_with_its_rows_and_columns_of_the_whole_table(share, init, dtype):
    table = Table("item", 7, rows=8, init=init, dtype=dtype)
    whole, part = DenseStore(table, 5), DenseStore(table, 5, share)
    expected = whole.weight[share.owns(table, torch.arange(8)), share.column :][:, : part.dim]
    assert (part.share, part.table, part.dim) == (share, table, share.dim_of(7))
    assert part.ids().tolist() == torch.arange(8)[share.owns(table, torch.arange(8))].tolist()
    assert torch.equal(part.weight, expected)
    part.weight.fill_(1)
    part.erase(part.ids()[:1])
    assert torch.equal(part.weight[:1], expected[:1])
    part.clear()
    assert torch.equal(part.weight, expected)


def test_a_share_takes_and_gives_ids_of_the_whole_table():
    store = DenseStore(Table("item", 2, rows=11), share=Share(1, 3))
    store.attach(ADAGRAD)
    store.load(torch.tensor([10, 4]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), {"sum": torch.tensor([5.0, 6.0])})
    assert store.weight[[3, 1]].tolist() == [[1, 2], [3, 4]]
    assert store.lookup(torch.tensor([4, 10, 4])).tolist() == [[3, 4], [1, 2], [3, 4]]
    found = store.read(torch.tensor([10, 1]))
    assert (found.ids.tolist(), found.state["sum"].tolist()) == ([10, 1], [5, 0.25])
    with store.capture() as capture:
        assert [part.ids.tolist() for part in capture.chunks(3)] == [[1, 4, 7], [10]]
    slots = store.prepare(torch.tensor([7, 1]), train=True)
    assert (slots.ids.tolist(), slots.slots.tolist()) == ([1, 7], [0, 2])


@pytest.mark.parametrize("do", ["load", "read", "prepare", "lookup", "erase"])
def test_rows_that_are_in_another_share_are_refused(do):
    store, ids = DenseStore(Table("item", 2, rows=11), share=Share(1, 3)), torch.tensor([1, 5])
    before = store.weight.clone()
    with pytest.raises(ValueError, match=r"table 'item': the row of id 5 is not in Share\(index=1, count=3"):
        store.load(ids, torch.ones(2, 2)) if do == "load" else getattr(store, do)(ids)
    assert torch.equal(store.weight, before)


def test_ids_beyond_a_table_of_zeros_have_no_slot_in_a_share():
    store = DenseStore(Table("item", 2, rows=11, out_of_range="zero"), share=Share(1, 3))
    assert store.lookup(torch.tensor([11, -5])).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("share", SHARES)
def test_a_copy_has_the_same_share_and_rows(share):
    store = DenseStore(Table("item", 7, rows=8), share=share)
    store.attach(ADAGRAD)
    store.weight.mul_(2)
    store.state("sum").fill_(3)
    for copied in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert copied.share == share
        assert torch.equal(copied.weight, store.weight)
        assert torch.equal(copied.state("sum"), store.state("sum"))


def test_a_store_of_no_rows_does_all_that_stores_do():
    store = DenseStore(Table("item", 4, rows=5), share=Share(empty=True))
    store.attach(ADAGRAD)
    nothing = torch.empty(0, dtype=torch.int64)
    store.update(store.prepare(nothing, train=True), torch.empty(0, 4), RowStep(rule=ADAGRAD, lr=1, step=1))
    store.load(nothing, torch.empty(0, 4))
    store.erase(nothing)
    store.clear()
    store.restore(store.snapshot())
    assert (len(store), store.clock, store.export().rows.shape, store.memory()["rows"]) == (0, 1, (0, 4), 0)
