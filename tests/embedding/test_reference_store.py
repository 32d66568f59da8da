"""The plain store against cases worked out by hand: it is the oracle of the others."""

from __future__ import annotations

import pytest
import torch

from hybridrec.data import xxh64
from hybridrec.embedding import LFU, TTL, Constant, MinCount, Probability, Table
from hybridrec.embedding.initial import initial_rows
from hybridrec.embedding.reference_store import ReferenceStore, victims
from hybridrec.ops.philox import reference as philox
from hybridrec.optim.rule import RowRule, RowStep, StateColumn


def dynamic(capacity: int, **options: object) -> ReferenceStore:
    return ReferenceStore(Table("user", 2, capacity=capacity, **options))  # pyright: ignore[reportArgumentType]


def step(store: ReferenceStore, *ids: int) -> list[bool]:
    """A training step on ids; which of them have a row."""
    slots = store.prepare(torch.tensor(ids), train=True)
    store.release(slots)
    return slots.live()[slots.inverse].tolist()


def test_ids_get_rows_when_training_first_sees_them():
    store = dynamic(10)
    assert store.prepare(torch.tensor([5])).live().tolist() == [False]
    assert step(store, 5, -1, 5) == [True] * 3
    assert store.ids().tolist() == [-1, 5]
    expected = initial_rows(store.table.init, xxh64("user", 0), torch.tensor([5]), 2, torch.float32)
    assert torch.equal(store.lookup(torch.tensor([5, 6])), torch.cat([expected, torch.zeros(1, 2)]))
    assert len(store) == 2


def test_lru_gives_up_what_was_used_longest_ago_and_the_lower_id_of_equals():
    store = dynamic(3)
    step(store, 3, 2, 1)
    step(store, 2)
    step(store, 9)
    assert store.ids().tolist() == [2, 3, 9]
    step(store, 8, 7)
    assert store.ids().tolist() == [7, 8, 9]
    assert store.counters()["evicted"] == 3


def test_reading_does_not_keep_a_row():
    store = dynamic(2)
    step(store, 1)
    step(store, 2)
    store.lookup(torch.tensor([1, 1]))
    step(store, 3)
    assert store.ids().tolist() == [2, 3]


def test_lfu_gives_up_what_was_used_least():
    store = dynamic(3, eviction=LFU())
    step(store, 1, 1, 2, 3, 3, 3)
    step(store, 2, 2, 2)
    step(store, 9)
    assert store.ids().tolist() == [2, 3, 9]
    assert store.export().counts.tolist() == [4, 3, 1]


def test_ttl_forgets_rows_not_seen_for_longer_and_they_start_anew():
    store = dynamic(10, eviction=TTL(2), init=Constant(1))
    step(store, 1, 2)
    store.load(torch.tensor([1]), torch.full((1, 2), 5.0), touched=torch.tensor([0]))
    step(store, 2)
    assert store.lookup(torch.tensor([1])).tolist() == [[5, 5]]
    step(store, 2)
    assert store.lookup(torch.tensor([1])).tolist() == [[0, 0]]
    assert store.ids().tolist() == [2]
    step(store, 1)
    assert store.lookup(torch.tensor([1])).tolist() == [[1, 1]]
    assert store.counters()["expired"] == 1


def test_without_eviction_a_full_table_refuses_new_ids():
    store = dynamic(2, eviction=None)
    assert step(store, 1, 2, 3, 3) == [True, True, False, False]
    assert step(store, 3, 1) == [False, True]
    assert store.counters()["refused"] == 3


def test_rows_in_flight_are_not_evicted_and_too_many_of_them_are_an_error():
    store = dynamic(3)
    first = store.prepare(torch.tensor([1, 2]), train=True)
    store.prepare(torch.tensor([3]), train=True)
    with pytest.raises(ValueError, match="'user' holds 3 rows and 1 more are needed, but only 0 may be evicted"):
        store.prepare(torch.tensor([4]), train=True)
    assert store.ids().tolist() == [1, 2, 3]
    store.release(first)
    store.prepare(torch.tensor([4]), train=True)
    assert store.ids().tolist() == [2, 3, 4]


def test_minimum_count_lets_an_id_in_with_the_batch_that_completes_it():
    store = dynamic(10, admission=MinCount(3))
    assert step(store, 7, 8, 8, 8) == [False, True, True, True]
    assert step(store, 7) == [False]
    assert step(store, 7) == [True]


def test_admission_by_probability_is_a_property_of_the_id():
    store = dynamic(1000, admission=Probability(0.3))
    ids = torch.arange(500)
    drawn = philox.admitted(xxh64("user", 0), ids.numpy(), 0.3)
    assert step(store, *ids.tolist()) == drawn.tolist()
    assert step(store, *ids.tolist()) == drawn.tolist()
    assert 100 < drawn.sum() < 200


def test_room_is_made_for_a_64th_of_the_table_at_once():
    assert victims(dict.fromkeys(range(640), 0), needed=1, capacity=640) == list(range(10))
    assert victims({1: 5, 2: 4}, needed=1, capacity=640) == [2, 1]


def test_an_update_changes_the_rows_named_and_their_state_only():
    store = ReferenceStore(Table("item", 2, rows=4, init=Constant(1)))
    rule = RowRule("adagrad", (StateColumn("sum", fill=0.0),))
    store.attach(rule)
    slots = store.prepare(torch.tensor([3, 1, 3]), train=True)
    assert slots.ids.tolist() == [1, 3]
    store.update(slots, torch.tensor([[2.0, 0.0], [0.0, 4.0]]), RowStep(rule=rule, lr=0.5, step=1, eps=1e-10))
    assert store.export().rows.tolist() == [[1, 1], [0.5, 1], [1, 1], [1, 0.5]]
    assert store.export().state["sum"].tolist() == [[0, 0], [4, 0], [0, 0], [0, 16]]
    assert store.clock == 1


def test_an_update_by_another_rule_than_the_attached_one_is_refused():
    store = ReferenceStore(Table("item", 2, rows=4))
    slots = store.prepare(torch.tensor([1]), train=True)
    with pytest.raises(ValueError, match="table 'item' keeps state for None, not for RowRule"):
        store.update(slots, torch.ones(1, 2), RowStep(rule=RowRule("sgd"), lr=0.5, step=1))


def test_state_follows_the_row_and_starts_anew_with_it():
    store = dynamic(1, init=Constant(0))
    rule = RowRule("momentum", (StateColumn("momentum"),))
    store.attach(rule)
    for id in (1, 1, 2):
        slots = store.prepare(torch.tensor([id]), train=True)
        store.update(slots, torch.ones(1, 2), RowStep(rule=rule, lr=1.0, step=1, momentum=0.5))
    assert store.export().state["momentum"].tolist() == [[1, 1]]
    assert store.export().rows.tolist() == [[-1, -1]]
