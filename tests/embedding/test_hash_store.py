from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from hybridrec.embedding import LFU, MinCount, Table
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.share import Share
from hybridrec.optim.rule import RowRule, RowStep

SGD = RowRule("sgd")
EXTREMES = torch.tensor([0, -1, 2**63 - 1, -(2**63), 7])


def store(capacity: int = 10, **options: object) -> HashStore:
    return HashStore(Table("user", 2, capacity=capacity, **options))  # pyright: ignore[reportArgumentType]


def train(of: HashStore, *ids: int) -> None:
    of.release(of.prepare(torch.tensor(ids), train=True))


def test_any_id_may_have_a_row():
    made = store()
    train(made, *EXTREMES.tolist())
    assert made.ids().tolist() == sorted(EXTREMES.tolist())
    made.load(EXTREMES, torch.arange(10.0).view(5, 2))
    assert made.lookup(EXTREMES).tolist() == torch.arange(10.0).view(5, 2).tolist()


def test_an_astronomical_capacity_costs_nothing():
    made = store(10**12)
    train(made, 1, 2)
    assert made.memory()["allocated"] < 2**26


def test_more_ids_at_once_than_capacity_are_refused_by_name_and_change_nothing():
    made = store(3)
    train(made, 1, 2)
    before = made.export()
    message = "table 'user' holds 3 rows and 2 more are needed, but only 1 may be evicted; give it a larger capacity"
    with pytest.raises(ValueError, match=message):
        made.prepare(torch.tensor([2, 3, 4, 5]), train=True)
    assert made.ids().tolist() == [1, 2]
    with pytest.raises(ValueError, match="table 'user' holds 3 rows and 3 more are needed"):
        made.load(torch.tensor([4, 5, 6, 7]), torch.ones(4, 2))
    assert torch.equal(made.export().rows, before.rows)


def test_gradients_of_rows_that_are_gone_are_dropped_and_counted():
    made = store(2)
    made.attach(SGD)
    late = made.prepare(torch.tensor([1, 2]), train=True)
    made.release(late)
    train(made, 5)
    before = made.lookup(torch.tensor([5]))
    made.update(late, torch.ones(2, 2), RowStep(rule=SGD, lr=1, step=1))
    assert torch.equal(made.lookup(torch.tensor([5])), before)
    assert made.counters()["dropped_gradients"] == 1


def test_counters_tell_what_happened():
    made = store(3, eviction=LFU(), admission=MinCount(2))
    train(made, 1, 1, 2)
    train(made, 1, 2)
    made.lookup(torch.tensor([1, 9]))
    names = ("hits", "misses", "inserted", "refused", "evicted", "expired", "dropped_gradients", "nan_rows")
    assert made.counters() == dict(zip(names, (1, 4, 2, 1, 0, 0, 0, 0), strict=True))


def test_a_row_costs_no_more_than_24_bytes_beside_itself():
    made = store(200_000, eviction=LFU())
    ids = torch.randint(-(2**62), 2**62, (150_000,), generator=torch.Generator().manual_seed(0)).unique()
    made.prepare(ids, train=True)
    memory = made.memory()
    assert memory["rows"] == len(ids) * 8
    assert memory["overhead_per_row"] <= 24


def test_rows_are_dirty_from_the_step_that_touched_them():
    made = store()
    train(made, 1, 2)
    train(made, 2, 3)
    assert made.dirty(since=0).tolist() == [1, 2, 3]
    assert made.dirty(since=1).tolist() == [2, 3]
    assert made.dirty(since=2).tolist() == []


def test_a_step_may_be_named():
    made = store()
    slots = made.prepare(torch.tensor([4]), step=17, train=True)
    assert (slots.step, made.clock, made.export().touched.tolist()) == (17, 17, [17])
    made.release(slots)
    made.release(slots)
    assert made.clock == 18


def test_reading_a_row_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="table 'user' has no row for id 4"):
        store().read(torch.tensor([4]))


def test_the_sketch_survives_a_snapshot():
    made, other = (store(admission=MinCount(3)) for _ in range(2))
    train(made, 5, 5)
    other.restore(made.snapshot())
    train(other, 5)
    assert other.ids().tolist() == [5]


def test_room_for_rows_changes_nothing_but_memory():
    of = store(100_000, admission=MinCount(2))
    train(of, 5, 5, 7, 7, 9)
    before, allocated = of.snapshot(), of.memory()["allocated"]
    of.make_room(90_000)
    after = of.snapshot()
    assert of.memory()["allocated"] > allocated
    assert after.data.ids.tolist() == before.data.ids.tolist() == [5, 7]
    assert torch.equal(after.data.rows, before.data.rows)
    assert before.sketch is not None
    assert after.sketch is not None
    assert torch.equal(after.sketch, before.sketch)


def test_a_snapshot_that_does_not_fit_is_refused_and_nothing_changes():
    large, small = store(10), store(2)
    train(large, 1, 2, 3)
    train(small, 7)
    with pytest.raises(ValueError, match="table 'user' holds 2 rows, and 3 are to be restored; give it a larger"):
        small.restore(large.snapshot())
    held = large.snapshot()
    with pytest.raises(ValueError, match=r"rows must be \[3, 2\]"):
        small.restore(dataclasses.replace(held, data=held.data._replace(rows=torch.ones(3, 5))))
    assert small.ids().tolist() == [7]


# -- shares of a table ------------------------------------------------------------------------------------


def owned(share: Share, table: Table, count: int) -> torch.Tensor:
    """The first few ids of a share."""
    ids = torch.arange(-200, 200)
    return ids[share.owns(table, ids)][:count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [Share(1, 3), Share(column=3, width=2), Share(2, 4, 1)])
def test_a_share_begins_with_its_columns_of_the_whole_rows(share, dtype):
    table = Table("user", 7, capacity=100, dtype=dtype)
    whole, part, ids = HashStore(table, 5), HashStore(table, 5, share), owned(share, table, 20)
    for each in (whole, part):
        train(each, *ids.tolist())
    assert part.ids().tolist() == ids.tolist()
    assert torch.equal(part.lookup(ids), whole.lookup(ids)[:, share.column :][:, : part.dim])
    copied = copy.deepcopy(part)
    assert (copied.share, copied.ids().tolist()) == (share, ids.tolist())


def test_shares_divide_the_capacity():
    table = Table("user", 2, capacity=10, eviction=None)
    for share, most in ((Share(), 10), (Share(1, 3), 4), (Share(column=1), 10), (Share(3, 100), 1)):
        part = HashStore(table, share=share)
        train(part, *owned(share, table, 20).tolist())
        assert (part.capacity, len(part)) == (most, most)


@pytest.mark.parametrize("do", ["load", "prepare"])
def test_ids_of_another_share_are_refused(do):
    table = Table("user", 2, capacity=100)
    part, strange = HashStore(table, share=Share(1, 3)), owned(Share(2, 3), table, 1)
    with pytest.raises(ValueError, match=f"table 'user': the row of id {int(strange)} is not in Share"):
        part.load(strange, torch.ones(1, 2)) if do == "load" else part.prepare(strange, train=True)
    assert len(part) == 0


def test_an_empty_share_has_no_rows_and_takes_none():
    part, nothing = HashStore(Table("user", 2, capacity=10), share=Share(empty=True)), torch.empty(0, dtype=torch.int64)
    part.attach(SGD)
    part.update(part.prepare(nothing, train=True), torch.empty(0, 2), RowStep(rule=SGD, lr=1, step=1))
    part.restore(part.snapshot())
    assert (len(part), part.ids().tolist(), part.export().rows.shape) == (0, [], (0, 2))
    with pytest.raises(ValueError, match="the row of id 1 is not in Share"):
        part.prepare(torch.tensor([1]), train=True)
