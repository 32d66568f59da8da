"""Steps with dynamic tables as CUDA graphs: rows come and go before a replay, which finds slots where it looks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import LRU, MinCount
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.embedding.initial import Constant
from hybridrec.train import graphs
from hybridrec.train.losses import Divisor
from hybridrec.types import Batch, IdBlock
from tests.embedding.gpu.on_device import ids, lists
from tests.embedding.gpu.replayed import Run, drawn, replays, scored  # noqa: F401 (replays is a fixture)
from tests.gpu import DEVICE, INTERPRETED, needs_gpu
from tests.ops.row_cache.caches import SMALL

pytestmark = needs_gpu

STEPS, ROWS = (3, 2) if INTERPRETED else (24, 4)  # of rows a power of two: gradients are exact
OPTIMIZERS = {
    "rowwise_adagrad": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.125),
    "adam": lambda m: hr.optim.Adam(m, lr=0.125),
}


def store(table: hr.Table, seed: int) -> DeviceStore:
    if table.cache is not None:
        return TieredStore(table, seed, DEVICE, 30, sizes=SMALL)
    return DeviceHashStore(table, seed, DEVICE, slots=2) if table.dynamic else DeviceStore(table, seed, DEVICE)


def tables(**of_a: Any) -> list[hr.Table]:
    """Of several kinds: features share one, are pooled in all ways, and are of other tables beside them."""
    pooled = {"c": "max", "c_seq": "none"}
    return [
        hr.Table("a", dim=8, features=["a", "a_list"], combiner={"a": "sum", "a_list": "mean"}, **of_a),
        hr.Table("b", dim=8, rows=9, features=["b"], out_of_range="hash"),
        hr.Table("c", dim=5, capacity=90, features=["c", "c_seq"], combiner=pooled, dtype=torch.bfloat16),
        hr.Table("d", dim=8, rows=50, cache=30, features=["d"]),
    ]


WIDTH = 8 + 8 + 8 + 5 + 8


def block(rows: int) -> IdBlock:
    b = ids(9, rows)
    b[::2] += 2**40  # by their hash
    a = {"a": ids(60, rows) * 2**33 - 7, "a_list": _spread(lists(60, 2, rows))}  # means of two are exact
    return IdBlock.from_ragged({**a, "b": b, "c": ids(30, rows, 2), "c_seq": lists(30, 2, rows), "d": ids(50, rows)})


def _spread(given: hr.Ragged) -> hr.Ragged:
    return replace(given, values=given.values * 2**33 - 7)


def batches(count: int) -> list[Batch]:
    torch.manual_seed(0)
    return [drawn(block(ROWS), WIDTH) for _ in range(count)]


def agree(one: Run, other: Run) -> None:
    for name, expected in one.group.stores.items():
        found, wanted = (each.snapshot().data for each in (other.group.stores[name], expected))
        order, known = found.ids.argsort(), wanted.ids.argsort()
        assert torch.equal(found.ids[order], wanted.ids[known]), name
        assert torch.equal(found.rows[order], wanted.rows[known]), name
        for column, values in found.state.items():
            assert torch.equal(values[order], wanted.state[column][known]), name
        assert other.group.stores[name].clock == expected.clock
        if isinstance(expected, DeviceHashStore):
            assert other.group.stores[name].counters() == expected.counters()
    ground = other.group.ground
    assert not any(places.any() for places in (ground.places, *(each.tensor for each in ground.growing.values())))


KINDS = {
    "grow": {"capacity": 1000},
    "are full": {"capacity": 14, "eviction": LRU(), "admission": MinCount(2)},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS if not INTERPRETED else ["adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_steps_are_those_that_are_launched_bit_for_bit_while_tables(kind: str, optimizer: str) -> None:
    launched, replayed = (Run(tables(**KINDS[kind]), store, OPTIMIZERS[optimizer], each) for each in (False, True))
    given = batches(STEPS)
    before = _memory(replayed)
    assert replayed.train(given[:-1]) == launched.train(given[:-1])
    seen = batches(1)[0]
    assert torch.equal(replayed.evaluate(seen), launched.evaluate(seen))  # without a graph, between replays
    assert replayed.train(given[-1:]) == launched.train(given[-1:])
    agree(launched, replayed)
    assert replayed.graphs.refused is None
    assert replayed.graphs.replays == STEPS - graphs.SEEN
    assert _memory(replayed) > before


def _memory(run: Run) -> int:
    return sum(each.slots.slots for each in run.group.stores.values() if isinstance(each, DeviceHashStore))


def user(capacity: int, **options: Any) -> Run:
    table = hr.Table("user", 2, capacity=capacity, combiner="sum", init=Constant(1.0), **options)
    return Run([table], store, lambda m: hr.optim.SGD(m, lr=0.125))


def users(*given: list[int]) -> Batch:
    """A batch of rows with so many ids each; the gradient of a row is 1 over their number, for each time it comes."""
    return scored(IdBlock.from_ragged({"user": torch.tensor(given)}), 2)


def first_numbers(run: Run) -> dict[int, float]:
    data = run.group.stores["user"].snapshot().data
    return dict(zip(data.ids.tolist(), data.rows[:, 0].tolist(), strict=True))


def test_rows_that_leave_for_those_of_a_replay_take_no_part_in_it() -> None:
    run = user(capacity=3)
    run.train([users([1, 2], [3, 3]) for _ in range(graphs.SEEN + 1)])
    steps = graphs.SEEN + 1
    once = 0.125 / 2
    assert first_numbers(run) == {1: 1 - steps * once, 2: 1 - steps * once, 3: 1 - 2 * steps * once}
    run.train([users([3, 8], [9, 9])])
    assert first_numbers(run) == {3: 1 - (2 * steps + 1) * once, 8: 1 - once, 9: 1 - 2 * once}
    assert run.graphs.replays == 2


def test_a_replay_that_needs_more_rows_than_there_may_be_is_told_and_none_is_lost() -> None:
    run = user(capacity=3)
    run.train([users([1, 2], [3, 3]) for _ in range(graphs.SEEN + 1)])
    before = first_numbers(run)
    with pytest.raises(ValueError, match="table 'user' holds 3 rows and 4 more are needed, but only 3 may be evicted"):
        run.train([users([5, 6], [7, 8])])
    assert run.graphs.replays == 2
    assert first_numbers(run) == before
    run.train([users([5, 6], [7, 7])])
    assert set(first_numbers(run)) == {5, 6, 7}


def test_gradients_of_a_replay_whose_rows_are_gone_are_dropped_and_the_next_replay_is_as_ever() -> None:
    run = user(capacity=8)
    run.train([users([1, 2], [3, 3]) for _ in range(graphs.SEEN + 1)])
    batch = run.learner.place(users([1, 2], [3, 4])).batch
    graph, rows, table = run.graphs.find(run.learner, batch), run.learner.rows, run.group.stores["user"]
    assert graph is not None
    assert rows is not None
    graph.replay(batch, Divisor(2.0, 2.0))
    table.clear()
    table.load(torch.tensor([9, 10, 11, 12]), torch.full((4, 2), 5.0))  # in the slots of those
    rows.step()
    assert first_numbers(run) == dict.fromkeys([9, 10, 11, 12], 5.0)
    assert table.counters()["dropped_gradients"] == 4
    run.train([users([9, 1], [1, 2])])
    assert first_numbers(run) == {9: 5 - 0.0625, 10: 5, 11: 5, 12: 5, 1: 1 - 0.125, 2: 1 - 0.0625}
    assert run.graphs.replays == 3


def test_rows_come_to_a_table_that_is_not_trained_and_none_where_its_collection_is_in_eval() -> None:
    made = [hr.Table("user", 2, capacity=8, trainable=False), hr.Table("item", 2, rows=3)]
    run = Run(made, store, lambda m: hr.optim.SGD(m, lr=0.125))

    def batch(*given: int) -> Batch:
        return scored(IdBlock.from_ragged({"user": torch.tensor(given), "item": torch.tensor([0] * len(given))}), 4)

    table = run.group.stores["user"]
    run.train([batch(1, 2, 3, number) for number in range(4, 4 + graphs.SEEN + 1)])
    there = table.ids().tolist()
    assert there == list(range(1, 4 + graphs.SEEN + 1))
    assert run.graphs.replays == 1
    assert table.clock == graphs.SEEN + 1
    run.model.embeddings.eval()
    run.train([batch(1, 2, 3, 100) for _ in range(graphs.SEEN + 1)])
    assert run.graphs.replays == 2, "of another graph"
    assert table.ids().tolist() == there
    assert table.clock == graphs.SEEN + 1


def test_ids_that_a_model_makes_itself_are_no_part_of_a_graph_and_steps_go_on_without() -> None:
    run = user(capacity=8)
    own = run.model.embeddings.forward
    run.model.embeddings.forward = lambda batch: own(batch.ids.map_tensors(torch.clone))
    run.train([users([1, 2], [3, 3]) for _ in range(graphs.SEEN + 2)])
    assert "only where its ids are those of the batch as it comes" in (run.graphs.refused or "")
    assert first_numbers(run)[1] == 1 - 0.0625 * (graphs.SEEN + 2)


def test_a_batch_that_is_looked_up_twice_is_counted_twice_so_its_steps_are_no_graphs() -> None:
    run = user(capacity=8, admission=MinCount(2))
    own = run.model.embeddings.forward
    run.model.embeddings.forward = lambda batch: (own(batch), own(batch))[1]
    run.train([users([1, 2], [3, 3]) for _ in range(graphs.SEEN + 2)])
    assert "looked up twice in one step" in (run.graphs.refused or "")
    assert run.group.stores["user"].counters()["hits"] == 8 * (graphs.SEEN + 2) - 6


def test_a_collection_in_eval_counts_nothing_and_may_look_up_twice_in_a_graph() -> None:
    run = user(capacity=8)
    own = run.model.embeddings.forward
    run.model.embeddings.forward = lambda batch: (own(batch), own(batch))[1]
    run.model.embeddings.eval()
    run.train([users([1, 2], [3, 3]) for _ in range(graphs.SEEN + 2)])
    assert run.graphs.refused is None
    assert run.graphs.replays == 2
