from __future__ import annotations

import re

import pytest
import torch

from hybridrec.embedding import Constant, Table
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.optim.rule import RowRule, RowStep, StateColumn

MOMENTUM = RowRule("momentum", (StateColumn("momentum"),))


def stores() -> list[DenseStore | HashStore]:
    fixed, dynamic = Table("t", 2, rows=4, init=Constant(1)), Table("t", 2, capacity=4, init=Constant(1))
    return [DenseStore(fixed), HashStore(dynamic)]


@pytest.mark.parametrize("store", stores(), ids=["dense", "hash"])
def test_every_number_of_a_step_reaches_the_kernel(store):
    store.attach(MOMENTUM)
    numbers = {"momentum": 0.5, "weight_decay": 0.25, "grad_scale": 2.0, "clip_row_norm": 4.0, "weight_bound": 1.5}
    for step in (1, 2):
        slots = store.prepare(torch.tensor([3]), train=True)
        store.update(slots, torch.tensor([[-8.0, 0.0]]), RowStep(rule=MOMENTUM, lr=0.5, step=step, **numbers))
    # -8 doubled is clipped to -4; with decay the first gradients are -3.75 and 0.25, the second -3.625 and 0.21875.
    data = store.read(torch.tensor([3]))
    assert data.state["momentum"].tolist() == [[-5.5, 0.34375]]
    assert data.rows.tolist() == [[1.5, 0.703125]]


@pytest.mark.parametrize("store", stores(), ids=["dense", "hash"])
def test_an_update_by_another_rule_than_the_attached_one_is_refused(store):
    slots = store.prepare(torch.tensor([1]), train=True)
    with pytest.raises(ValueError, match=re.escape("table 't' keeps state for None, not for RowRule(kind='momentum'")):
        store.update(slots, torch.ones(1, 2), RowStep(rule=MOMENTUM, lr=0.5, step=1))


@pytest.mark.parametrize("store", stores(), ids=["dense", "hash"])
def test_attaching_again_starts_the_state_anew_and_detaching_drops_it(store):
    store.attach(MOMENTUM)
    store.load(torch.tensor([2]), torch.ones(1, 2), {"momentum": torch.ones(1, 2)})
    store.attach(MOMENTUM)
    assert store.read(torch.tensor([2])).state["momentum"].tolist() == [[0, 0]]
    store.detach()
    assert (store.rule, store.export().state) == (None, {})
    assert store.memory()["state"] == 0


@pytest.mark.parametrize("store", stores(), ids=["dense", "hash"])
def test_rows_are_loaded_from_any_floating_type_and_layout(store):
    rows = torch.arange(4, dtype=torch.float64).view(2, 2).T
    store.load(torch.tensor([9, 0, 9, 1])[1::2], rows)
    assert store.lookup(torch.tensor([0, 1])).tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize("store", stores(), ids=["dense", "hash"])
def test_gradients_of_another_shape_than_the_rows_are_refused(store):
    store.attach(MOMENTUM)
    slots = store.prepare(torch.tensor([1, 2]), train=True)
    for shape in ([1, 2], [2, 3], [2]):
        with pytest.raises(ValueError, match=re.escape(f"gradients must be [2, 2], one per row, got {shape}")):
            store.update(slots, torch.ones(shape), RowStep(rule=MOMENTUM, lr=0.5, step=1))
