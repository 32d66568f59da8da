"""Rows of dynamic tables in flight, between their lookup and their step, and gradients that come when they are gone."""

from __future__ import annotations

import math
import threading
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding import LFU, LRU, TTL, EmbeddingCollection, Table
from hybridrec.embedding.initial import Uniform
from hybridrec.optim import SGD, Adagrad
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import COMBINERS, factors
from tests.embedding.test_dynamic import dynamic, ids_of, step

# -- pins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", [LRU(), LFU(), TTL(1)])
def test_rows_in_flight_are_not_evicted(eviction):
    emb = dynamic(4, eviction=eviction)
    rows = SGD(emb, lr=1.0)
    step(emb, rows, 7, 8, 8)
    one = emb({"user": torch.tensor([1, 2])}).flat
    two = emb({"user": torch.tensor([3, 1])}).flat  # 7 goes, or 8 of the lower count
    with pytest.raises(ValueError, match=r"table 'user' holds 4 rows and 2 more are needed, but only 1 may be evicted"):
        emb({"user": torch.tensor([4, 5])})
    assert {1, 2, 3} < set(ids_of(emb))
    (one.sum() + two.sum()).backward()
    rows.step()
    assert emb.lookup("user", [1, 2, 3])[:, 0].tolist() == [-1, 0, 0]
    step(emb, rows, 4, 5, 6)
    assert {4, 5, 6} <= set(ids_of(emb))


@pytest.mark.parametrize("interruption", ["no_grad", "inference", "eval", "zero_grad", "norm"])
def test_nothing_but_a_step_ends_the_flight(interruption):
    emb = dynamic(4)
    rows = SGD(emb, lr=1.0)
    out = emb({"user": torch.tensor([1, 2, 3, 4])}).flat
    if interruption == "no_grad":
        with torch.no_grad():
            emb({"user": torch.tensor([1])})
    elif interruption == "inference":
        with torch.inference_mode():
            emb({"user": torch.tensor([1])})
    elif interruption == "eval":
        emb.eval()({"user": torch.tensor([1, 9])})
        emb.train()
    elif interruption == "zero_grad":
        rows.zero_grad()
    else:
        rows.grad_norm()
    with pytest.raises(ValueError, match="only 0 may be evicted"), torch.no_grad():
        emb({"user": torch.tensor([5])})
    out.sum().backward()
    rows.step()
    assert emb["user"].export().rows[:, 0].tolist() == [0, 0, 0, 0]
    assert emb["user"].counters()["dropped_gradients"] == 0


def test_without_gradients_training_goes_on_past_the_capacity():
    """Nothing can come back for these rows, so each lookup may evict those of the one before."""
    emb = dynamic(4)
    with torch.no_grad():
        for start in range(0, 30, 3):
            assert emb({"user": torch.arange(start, start + 3)}).flat.all()
    assert len(emb["user"]) == 4


def test_a_frozen_table_takes_ids_past_its_capacity():
    tables = [Table("user", 2, capacity=4, trainable=False), Table("item", 2, rows=5)]
    emb = EmbeddingCollection(tables)
    rows = SGD(emb, lr=1.0)
    for start in range(0, 30, 3):
        emb({"user": torch.arange(start, start + 3), "item": torch.tensor([0, 1, 2])}).flat.sum().backward()
        rows.step()
    assert len(emb["user"]) == 4
    fresh = EmbeddingCollection(tables)({"user": torch.tensor([29]), "item": torch.tensor([0])})["user"]
    assert torch.equal(emb.lookup("user", [29]), fresh)


def test_a_step_ends_the_flight_of_rows_that_took_no_gradient():
    """A feature that the loss of this step does not read."""
    emb = EmbeddingCollection([Table("user", 2, capacity=4, combiner="none"), Table("item", 2, rows=5)])
    rows = SGD(emb, lr=1.0)
    for start in range(0, 30, 3):
        emb({"user": torch.arange(start, start + 3), "item": torch.tensor([0, 1, 2])}).flat.sum().backward()
        rows.step()
    assert len(emb["user"]) == 4
    assert rows.steps_of("user") == 0


def test_a_step_that_a_grad_scaler_skips_ends_the_flight_too():
    emb = dynamic(4)
    rows = SGD(emb, lr=1.0)
    scaler = torch.amp.GradScaler("cpu")  # pyright: ignore[reportPrivateImportUsage]  (its documented home)
    for start in range(0, 30, 3):
        scaler.scale(emb({"user": torch.arange(start, start + 3)}).flat.sum() * math.inf).backward()
        scaler.step(rows)
        scaler.update()
    assert (len(emb["user"]), rows.steps_of("user")) == (4, 0)


# -- gradients that come late --------------------------------------------------------------------------------------


@given(data=st.data())
def test_a_gradient_reaches_the_row_that_was_read_or_none_however_late_it_comes(data):
    """Each id counts its lives. A row may take gradients of its own id only; those of its present life it must take."""
    emb = dynamic(data.draw(st.integers(3, 6)), eviction=data.draw(st.sampled_from([LRU(), LFU(), TTL(2)])))
    rows, held, lives, values = SGD(emb, lr=1.0), [], Counter(), {}
    for turn in range(8):
        ids = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
        alive = set(ids_of(emb))
        held.append((emb({"user": torch.tensor(ids)}).flat, [(id, lives[id] + (id not in alive)) for id in ids]))
        lives.update(set(ids) - alive)
        values.update(dict.fromkeys(set(ids) - alive, 1.0))
        sums, old = Counter(), set()
        due = data.draw(st.integers(0, len(held)))
        for out, read in held[:due]:
            grad = factors((len(read), 1), turn)
            out.backward(grad.expand(-1, 2))
            sums.update({id: 0.0 for id, life in read})
            for (id, life), one in zip(read, grad[:, 0].tolist(), strict=True):
                sums[id] += one if life == lives[id] else 0.0
                old |= {id} if life != lives[id] else set()
        held = held[due:]
        rows.step()
        for id, row in zip(*emb["user"].export()[:2], strict=True):
            values[int(id)] -= sums[int(id)]
            if int(id) in old:  # whether a row takes the gradient of an earlier life is nobody's business
                values[int(id)] = float(row[0])
            assert row.tolist() == [values[int(id)]] * 2


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_rows_that_are_gone_are_dropped_and_hit_no_other_row(combiner, weighted):
    """Rows 1 and 2 are evicted between the forward and the backward call, and their slots given to others."""
    emb = dynamic(3, combiner=combiner)
    rows = SGD(emb, lr=1.0)
    bags, weights = Ragged.from_lists([[1, 2, 3], [2], [3, 3]]), torch.tensor([1.0, 1.0, 2.0, 1.0, 1.0, 3.0])
    late = emb(IdBlock.from_ragged({"user": bags}, {"user": weights} if weighted else None))["user"]
    rows.step()  # of a batch without gradients: the flight is over
    new = emb({"user": torch.tensor([4, 5])})["user"]
    assert ids_of(emb) == [3, 4, 5]
    (late.flat if isinstance(late, Ragged) else late).sum().backward()
    moved = emb["user"].export().rows.clone()
    rows.step()
    assert torch.equal(emb.lookup("user", [4, 5]), moved[1:])
    w = weights if weighted else torch.ones(6)
    shares = {
        "sum": w[2] + w[4] + w[5],
        "mean": w[2] / w[:3].sum() + 1,
        "sqrtn": w[2] / w[:3].square().sum().sqrt() + w[4:].sum() / w[4:].square().sum().sqrt(),
        "max": (w[2] if weighted else 0.0) + w[4:].max(),  # of equal ones the first won, and that row is gone
        "none": w[2] + w[4] + w[5],
    }
    assert emb.lookup("user", [3])[0].tolist() == pytest.approx([1 - float(shares[combiner])] * 2)
    assert emb["user"].counters()["dropped_gradients"] == 3
    assert new is not None


def test_late_gradients_and_timely_ones_meet_in_one_step():
    emb = dynamic(3, combiner="none")
    rows = Adagrad(emb, lr=1.0, initial_accumulator_value=1.0)
    late = emb({"user": torch.tensor([1, 2, 3])})["user"].flat
    rows.step()
    timely = emb({"user": torch.tensor([3, 9])})["user"].flat  # 1 goes
    late.backward(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    timely.backward(torch.tensor([[4.0, 4.0], [5.0, 5.0]]))
    rows.step()
    data = emb["user"].export()
    assert data.ids.tolist() == [2, 3, 9]
    assert data.state["sum"][:, 0].tolist() == [1 + 4, 1 + 49, 1 + 25]
    assert emb["user"].counters()["dropped_gradients"] == 1


def test_clearing_or_erasing_rows_drops_their_gradients():
    for forget in (lambda store: store.clear(), lambda store: store.erase(torch.tensor([1, 2]))):
        emb = dynamic(3)
        rows = SGD(emb, lr=1.0)
        out = emb({"user": torch.tensor([1, 2])}).flat
        forget(emb["user"])
        emb({"user": torch.tensor([7, 8])})
        out.sum().backward()
        rows.step()
        assert emb.lookup("user", [7, 8]).tolist() == [[1, 1], [1, 1]]
        assert emb["user"].counters()["dropped_gradients"] == 2


@pytest.mark.parametrize("combiner", COMBINERS)
def test_the_gradient_of_weights_does_not_read_the_row_that_took_the_place(combiner):
    emb = dynamic(2, combiner=combiner)
    rows = SGD(emb, lr=1.0)
    weights = torch.tensor([1.0, 2.0], requires_grad=True)
    out = emb(IdBlock.from_ragged({"user": torch.tensor([[1], [2]])}, {"user": weights}))["user"]
    rows.step()
    emb({"user": torch.tensor([8, 9])})
    emb["user"].load(torch.tensor([8, 9]), torch.full((2, 2), 1000.0))
    (out.flat if isinstance(out, Ragged) else out).sum().backward()
    assert weights.grad.abs().max() < 100
    rows.zero_grad()


def weighed(emb: EmbeddingCollection, weights: torch.Tensor) -> torch.Tensor:
    """The numbers of ids 1, 2 and 3 in two bags with these weights, ahead of a lookup of others."""
    bags = Ragged.from_lists([[1, 2], [3]])
    found = emb(IdBlock.from_ragged({"user": bags}, {"user": weights}))["user"]
    return found.flat if isinstance(found, Ragged) else found


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("eviction", [LRU(), TTL(1)])
@pytest.mark.parametrize("way", ["untrained", "eval", "compiled"])
def test_weights_have_the_gradient_of_the_rows_that_were_looked_up_though_they_are_gone(combiner, eviction, way):
    found = []
    for capacity in (3, 100):  # of which one has room for three rows more
        table = Table("user", 2, capacity=capacity, combiner=combiner, eviction=eviction, trainable=way == "eval")
        emb = EmbeddingCollection([table])
        emb["user"].load(torch.tensor([1, 2, 3]), torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]]))
        emb["user"].advance()
        emb.train(way != "eval")
        weights = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
        out = (torch.compile(weighed, backend="aot_eager") if way == "compiled" else weighed)(emb, weights)
        emb.train()
        for others in ([7, 8, 9], [10]) if capacity == 3 else ():
            with torch.no_grad():
                emb({"user": torch.tensor(others)})
        assert capacity == 100 or not {1, 2, 3}.intersection(ids_of(emb))
        found += torch.autograd.grad((out * factors(tuple(out.shape), 3)).sum(), weights)
    assert found[1].abs().max() > 0.01
    assert torch.equal(*found)


def test_a_copy_of_a_graph_on_erased_memory_is_safe_after_the_table_is_gone():
    emb = dynamic(3)
    rows = SGD(emb, lr=1.0)
    out = emb({"user": torch.tensor([1, 2])}).flat
    del emb, rows
    with pytest.raises(RuntimeError, match=r"no row optimizer|tables of this lookup are gone"):
        out.sum().backward()


def test_lookups_of_many_threads_that_evict_each_others_rows_read_the_rows_of_their_ids():
    drawn = Uniform(1.0)
    crowded = EmbeddingCollection([Table("item", 8, capacity=64, init=drawn, eviction=LRU())])
    roomy = EmbeddingCollection([Table("item", 8, capacity=1000, init=drawn)])  # where a row stays what it was
    with torch.no_grad():
        expected = roomy({"item": torch.arange(400)})["item"]
    wrong = []

    def look_up(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(300):
                ids = torch.randint(0, 400, (16,), generator=generator)
                if not torch.equal(crowded({"item": ids})["item"], expected[ids]):
                    wrong.append(ids)

    threads = [threading.Thread(target=look_up, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert crowded["item"].counters()["evicted"] > 0
