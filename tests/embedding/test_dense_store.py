from __future__ import annotations

import gc

import pytest
import torch

from hybridrec.embedding import Table
from hybridrec.embedding.dense_store import DenseStore
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
