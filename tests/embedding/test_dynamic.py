"""Dynamic tables through a collection and its optimizer: who comes, who stays, who goes, and whose gradient it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hybridrec.data import xxh64
from hybridrec.embedding import LFU, LRU, TTL, Constant, EmbeddingCollection, MinCount, Probability, Table, Uniform
from hybridrec.embedding.reference_store import ReferenceStore
from hybridrec.embedding.store import Slots
from hybridrec.ops.philox import reference as philox
from hybridrec.ops.row_update.reference import sum_duplicates
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import COMBINERS, factors, random_block
from tests.embedding.oracle import row_step

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**53 + 1]
KINDS = [SGD, Adagrad, RowWiseAdagrad, Adam, FTRL]


def dynamic(capacity: int, dim: int = 2, **options: Any) -> EmbeddingCollection:
    return EmbeddingCollection([Table("user", dim, capacity=capacity, **({"init": Constant(1.0)} | options))])


def ids_of(emb: EmbeddingCollection) -> list[int]:
    return emb["user"].ids().tolist()


def step(emb: EmbeddingCollection, rows: Any, *ids: int) -> Tensor:
    """A training step on single ids; their embeddings."""
    out = emb({"user": torch.tensor(ids, dtype=torch.int64)}).flat
    out.sum().backward()
    rows.step()
    return out.detach()


# -- beside the plain store --------------------------------------------------------------------------------------


class PlainDynamic:
    """A dynamic table with one number per id and batch row, by the reference store."""

    def __init__(self, table: Table) -> None:
        self.store = ReferenceStore(table)
        self.queue: list[tuple[Tensor, Tensor]] = []

    def attach(self, rows: Any) -> None:
        self.store.attach(rows.rule(rows.param_groups[0]))

    def train(self, ids: Tensor) -> tuple[Tensor, Slots]:
        slots = self.store.prepare(ids, train=True)
        return self.store.gather(slots)[slots.inverse], slots

    def backward(self, slots: Slots, grad: Tensor) -> None:
        live = slots.live()[slots.inverse]
        self.queue.append((slots.ids[slots.inverse][live], grad[live]))

    def step(self, rows: Any) -> None:
        if self.queue:
            known, place = torch.cat([ids for ids, _ in self.queue]).unique(return_inverse=True)
            _, sums = sum_duplicates(place, torch.cat([grad for _, grad in self.queue]))
            slots = self.store.prepare(known)
            self.store.update(slots, sums, row_step(rows, "user"))
            self.queue.clear()
        self.store.advance()


@settings(max_examples=max(100, settings().max_examples))
@given(data=st.data())
def test_any_history_is_that_of_the_plain_store(data):
    eviction = data.draw(st.sampled_from([LRU(), LFU(), TTL(1), TTL(3), None]))
    admission = data.draw(st.sampled_from([None, None, Probability(0.6), MinCount(2), MinCount(3)]))
    table = Table(
        "user", 2, capacity=data.draw(st.integers(2, 8)), eviction=eviction, admission=admission, init=Uniform(1)
    )
    emb, plain = EmbeddingCollection([table]), PlainDynamic(table)
    rows = data.draw(st.sampled_from([SGD, Adagrad]))(emb, lr=0.5)
    plain.attach(rows)
    batch = st.lists(st.integers(-6, 6), max_size=5)
    for turn in range(data.draw(st.integers(1, 8))):
        for call in range(data.draw(st.integers(0, 2))):
            ids = torch.tensor(data.draw(batch), dtype=torch.int64)
            grad = factors((len(ids), 2), 10 * turn + call).abs() + 0.125
            try:
                expected, slots = plain.train(ids)
            except ValueError as error:
                with pytest.raises(ValueError, match=str(error).split(";")[0]):
                    emb({"user": ids})
                return
            out = emb({"user": ids}).flat
            torch.testing.assert_close(out.detach(), expected)
            out.backward(grad)
            plain.backward(slots, grad)
        plain.step(rows)
        rows.step()
        assert_same_tables(emb, plain)
        emb.eval()({"user": torch.arange(-9, 9)})  # which changes nothing
        emb.train()


def assert_same_tables(emb: EmbeddingCollection, plain: PlainDynamic) -> None:
    found, expected = emb["user"].export(), plain.store.export()
    assert found.ids.tolist() == expected.ids.tolist()
    assert len(found.ids) <= emb.tables["user"].capacity
    torch.testing.assert_close(found.rows, expected.rows)
    assert found.touched.tolist() == expected.touched.tolist()
    assert (found.counts is None) == (expected.counts is None)
    assert found.counts is None or found.counts.tolist() == expected.counts.tolist()
    for name, part in expected.state.items():
        torch.testing.assert_close(found.state[name], part)
    mine, theirs = emb["user"].counters(), plain.store.counters()
    assert {name: mine[name] for name in theirs} == theirs


# -- a table that never gives up a row is a fixed one --------------------------------------------------------------


def trained(kind: Any, **options: Any) -> EmbeddingCollection:
    """A collection after a few steps, with all combiners, weights and another table in it."""
    names = {combiner: combiner for combiner in COMBINERS}
    table = Table("t", 9, features=list(names), combiner=names, **options)
    emb = EmbeddingCollection([Table("other", 3, rows=60), table], seed=3)
    rows = kind(emb, lr=0.3)
    for seed in range(5):
        block = random_block({**dict.fromkeys(COMBINERS, 60), "other": 60}, 30, seed)
        columns = {name: block[name] for name in block.names}
        weights = {name: factors((len(column.flat),), seed) for name, column in columns.items()}
        out = emb(IdBlock.from_ragged(columns, weights))
        parts, generator = [out.flat, out["none"].flat], torch.Generator().manual_seed(seed)
        torch.autograd.backward(parts, [torch.randn(part.shape, generator=generator) for part in parts])
        rows.step()
    return emb


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_without_evictions_training_is_that_of_a_fixed_table_bit_for_bit(kind, dtype):
    fixed, grown = trained(kind, rows=60, dtype=dtype), trained(kind, capacity=500, dtype=dtype)
    found = grown["t"].export()
    expected = fixed["t"].read(found.ids)
    assert len(found.ids) > 50
    assert torch.equal(found.rows, expected.rows)
    assert all(torch.equal(part, expected.state[name]) for name, part in found.state.items())


# -- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", [LRU(), LFU(), TTL(5)])
def test_evaluation_lets_nobody_in_keeps_no_scores_and_gives_zeros(eviction):
    emb = dynamic(4, eviction=eviction)
    rows = SGD(emb, lr=0.5)
    step(emb, rows, 1, 2)
    before, counted = emb["user"].export(), emb["user"].counters()
    emb.eval()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            out = emb({"user": torch.tensor([1, 9, 2, 9, 8, 7, 6, 5])}).flat
    assert out.tolist() == [[0.5, 0.5], [0, 0], [0.5, 0.5]] + [[0, 0]] * 5
    assert emb.lookup("user", [9]).tolist() == [[0, 0]]
    after = emb["user"].export()
    assert (after.ids.tolist(), after.touched.tolist()) == (before.ids.tolist(), before.touched.tolist())
    assert (after.counts is None) or after.counts.tolist() == before.counts.tolist()
    assert emb["user"].counters() == counted


def test_a_missing_id_takes_no_gradient_and_counts_in_its_bag():
    emb = dynamic(4, combiner="mean")
    rows = SGD(emb, lr=1.0)
    step(emb, rows, 1)
    emb.eval()
    out = emb({"user": Ragged.from_lists([[1, 99], [99], []])}).flat
    assert out.tolist() == [[0, 0], [0, 0], [0, 0]]
    out.sum().backward()
    rows.step()
    assert emb["user"].export().rows.tolist() == [[-0.5, -0.5]]
    assert ids_of(emb) == [1]


def test_any_int64_is_an_id():
    emb = dynamic(20, dim=3, init=Uniform(1.0))
    rows = SGD(emb, lr=1.0)
    first = step(emb, rows, *EXTREMES)
    assert ids_of(emb) == sorted(EXTREMES)
    second = step(emb, rows, *reversed(EXTREMES)).flip(0)
    torch.testing.assert_close(second, first - 1)
    assert len(first.unique(dim=0)) == len(EXTREMES)


# -- coming and going ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_with_the_row_and_an_id_that_returns_starts_anew(kind):
    emb = dynamic(2)
    rows = kind(emb, lr=0.5)
    step(emb, rows, 1, 2)
    fresh = emb["user"].read(torch.tensor([1]))
    step(emb, rows, 1)
    used = emb["user"].read(torch.tensor([1]))
    assert not torch.equal(used.rows, fresh.rows)
    step(emb, rows, 3)  # 2 goes, 1 stays with its state
    again = emb["user"].read(torch.tensor([1]))
    assert torch.equal(again.rows, used.rows)
    assert all(torch.equal(again.state[name], used.state[name]) for name in used.state)
    step(emb, rows, 4)  # 1 goes
    assert ids_of(emb) == [3, 4]
    with torch.no_grad():
        assert emb({"user": torch.tensor([1])}).flat.tolist() == [[1, 1]]
    fill = {column.name: column.fill for column in emb["user"].rule.state}
    assert {name: part.unique().tolist() for name, part in emb["user"].read(torch.tensor([1])).state.items()} == {
        name: [pytest.approx(value)] for name, value in fill.items()
    }


def test_the_least_recent_row_goes_and_of_equals_the_lower_id():
    emb = dynamic(3)
    rows = SGD(emb, lr=0.5)
    step(emb, rows, 3, -2, 1)
    step(emb, rows, 3)
    step(emb, rows, 9)
    assert ids_of(emb) == [1, 3, 9]
    step(emb, rows, 8, 7)
    assert ids_of(emb) == [7, 8, 9]


def test_the_least_frequent_row_goes_and_of_equals_the_lower_id():
    emb = dynamic(3, eviction=LFU())
    rows = SGD(emb, lr=0.5)
    step(emb, rows, 5, 5, 4, 4, 6)
    step(emb, rows, 9)
    assert ids_of(emb) == [4, 5, 9]
    step(emb, rows, 9, 9)
    step(emb, rows, 8)
    assert ids_of(emb) == [5, 8, 9]


def test_a_table_of_five_rows_keeps_the_refreshed_one():
    """PERSIA's own case: ten ids into five rows, the sixth refreshed, then one more."""
    emb = dynamic(5)
    rows = SGD(emb, lr=0.5)
    for id in range(10):
        step(emb, rows, id)
    assert ids_of(emb) == [5, 6, 7, 8, 9]
    step(emb, rows, 5)
    step(emb, rows, 10)
    assert ids_of(emb) == [5, 7, 8, 9, 10]


def test_time_to_live_counts_steps_with_gradients_or_without():
    emb = dynamic(10, eviction=TTL(2))
    rows = SGD(emb, lr=0.5)
    step(emb, rows, 1, 2)  # at clock 0
    step(emb, rows, 2)
    rows.step()
    assert ids_of(emb) == [2]
    assert emb.lookup("user", [1]).tolist() == [[0, 0]]
    assert step(emb, rows, 1).tolist() == [[1, 1]]
    assert emb["user"].counters()["expired"] == 1


def test_admission_by_probability_is_the_draw_of_the_reference():
    emb = EmbeddingCollection(
        [Table("user", 2, capacity=1000, admission=Probability(0.3), init=Constant(1.0))], seed=11
    )
    rows, ids = SGD(emb, lr=1.0), torch.arange(-200, 200) * 2**40
    drawn = torch.from_numpy(philox.admitted(xxh64("user", 11), ids.numpy(), 0.3))
    for turn in range(2):
        out = emb({"user": ids}).flat
        assert torch.equal(out[:, 0] != 0, drawn if turn == 0 else drawn & False)  # the first step makes them 0
        out.sum().backward()
        rows.step()
    assert ids_of(emb) == ids[drawn].tolist()
    assert (emb["user"].export().rows == -1).all()
    assert emb["user"].counters()["refused"] == 2 * int((~drawn).sum())


def test_admission_by_count_adds_up_features_and_batches():
    table = Table("user", 2, capacity=10, features=["a", "b"], admission=MinCount(3), init=Constant(1.0))
    emb = EmbeddingCollection([table])
    rows = SGD(emb, lr=0.5)
    both = emb({"a": torch.tensor([[1, 2]]), "b": torch.tensor([[1, 1]])})  # three times 1, once 2
    assert both.flat.tolist() == [[1, 1, 2, 2]]
    both.flat.sum().backward()
    rows.step()
    for expected in ([1], [1, 2]):
        emb({"a": torch.tensor([2]), "b": torch.tensor([9 + len(expected)])}).flat.sum().backward()
        rows.step()
        assert ids_of(emb) == expected


def test_a_full_table_without_eviction_refuses_new_ids_and_trains_on():
    emb = dynamic(2, eviction=None)
    rows = SGD(emb, lr=0.5)
    assert step(emb, rows, 1, 2, 3, 3).tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert step(emb, rows, 3, 2).tolist() == [[0, 0], [0.5, 0.5]]
    assert ids_of(emb) == [1, 2]
    assert emb["user"].counters()["refused"] == 3


def test_a_new_id_is_one_row_in_all_features_of_a_batch():
    table = Table("user", 2, capacity=10, features=["a", "b"], combiner={"a": "sum", "b": "none"}, init=Uniform(1.0))
    emb = EmbeddingCollection([table])
    rows = SGD(emb, lr=1.0)
    out = emb({"a": torch.tensor([[5, 5], [6, 5]]), "b": torch.tensor([5, 6])})
    assert len(emb["user"]) == 2
    first = out["b"].flat.detach().clone()
    (out.flat.sum() + out["b"].flat.sum()).backward()
    rows.step()
    torch.testing.assert_close(first - emb.lookup("user", [5, 6]), torch.tensor([[4.0, 4.0], [2.0, 2.0]]))


@pytest.mark.parametrize("eviction", [LRU(), LFU(), TTL(4)])
@pytest.mark.parametrize("admission", [None, MinCount(2), Probability(0.5)])
def test_training_resumed_from_a_saved_state_goes_on_bit_for_bit(eviction, admission):
    def batch(seed: int) -> dict[str, Tensor]:
        return {"user": torch.randint(0, 40, (10,), generator=torch.Generator().manual_seed(seed))}

    table = Table("user", 3, capacity=20, eviction=eviction, admission=admission)
    emb = EmbeddingCollection([table])
    rows = Adam(emb, lr=0.1)
    for seed in range(6):
        emb(batch(seed)).flat.square().sum().backward()
        rows.step()
    other = EmbeddingCollection([table])
    theirs = Adam(other, lr=0.1)
    other.load_state_dict(copy.deepcopy(emb.state_dict()))
    theirs.load_state_dict(copy.deepcopy(rows.state_dict()))
    for seed in range(6, 14):
        for model, optimizer in ((emb, rows), (other, theirs)):
            model(batch(seed)).flat.square().sum().backward()
            optimizer.step()
    mine, found = emb["user"].export(), other["user"].export()
    assert torch.equal(mine.ids, found.ids)
    assert torch.equal(mine.rows, found.rows)
    assert torch.equal(mine.touched, found.touched)
    assert all(torch.equal(mine.state[name], found.state[name]) for name in mine.state)
