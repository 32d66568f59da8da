"""The same rows, bit for bit: with any number of threads, any order of tables, in a child process, from any start."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrec.data import xxh64
from hybridrec.embedding import LFU, Constant, EmbeddingCollection, Normal, Table, Uniform
from hybridrec.embedding.initial import initial_rows
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import COMBINERS, random_block

SPLIT = 256 << 10  # occurrences beyond which a table is updated in parts


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tables(rows: int, dtype: torch.dtype = torch.float32) -> list[Table]:
    """One with every combiner, one with one id per row, one that grows and gives rows up."""
    names = {combiner: combiner for combiner in COMBINERS}
    return [
        Table("mixed", 5, rows=rows, features=list(names), combiner=names, dtype=dtype),
        Table("single", 16, rows=rows, dtype=dtype),
        Table("grown", 8, capacity=rows // 2, features=["grown"], eviction=LFU(), dtype=dtype),
    ]


def batch(rows: int, size: int, seed: int, longest: int, weighted: bool) -> IdBlock:
    generator = torch.Generator().manual_seed(seed)
    made = random_block(dict.fromkeys(COMBINERS, rows), size, seed, longest)
    columns: dict[str, Any] = {name: made[name] for name in made.names}
    columns["single"] = torch.randint(0, rows, (size,), generator=generator)
    columns["grown"] = torch.randint(-(rows // 10), rows // 10, (size, 3), generator=generator) * 2**40 + seed
    weights = {name: torch.randn(len(made[name].flat), generator=generator) for name in made.names}
    return IdBlock.from_ragged(columns, weights if weighted else None)


def train(given: list[Table], batches: list[IdBlock], kind: Any, calls: int = 1) -> dict[str, list[Tensor]]:
    """Rows and state of every table after training with gradients that no two orders of adding sum up alike."""
    emb = EmbeddingCollection(given)
    rows = kind(emb, lr=0.3)
    for number, block in enumerate(batches):
        out = emb(block)
        generator = torch.Generator().manual_seed(number)
        parts = [out[name] for name in sorted(out.pooled)] + [out[name].flat for name in sorted(out.sequences)]
        torch.autograd.backward(parts, [torch.randn(part.shape, generator=generator) for part in parts])
        if number % calls == calls - 1:
            rows.step()
    return {name: _parts(emb, name) for name in sorted(emb.tables)}


def _parts(emb: EmbeddingCollection, name: str) -> list[Tensor]:
    data = emb[name].export()
    return [data.ids, data.rows, *data.state.values()]


def assert_same_bits(found: dict[str, list[Tensor]], expected: dict[str, list[Tensor]]) -> None:
    for name, parts in expected.items():
        for mine, theirs in zip(found[name], parts, strict=True):
            assert mine.shape == theirs.shape, name
            assert bool((mine == theirs).all()), name


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowWiseAdagrad, Adam, FTRL])
@pytest.mark.parametrize("weighted", [False, True])
def test_small_batches_give_the_same_rows_with_any_number_of_threads(kind, weighted):
    batches = [batch(300, 200, seed, 4, weighted) for seed in range(4)]
    results = []
    for count in (1, 2, 3, 5):
        with threads(count):
            results.append(train(tables(300), batches, kind, calls=2))
    for found in results[1:]:
        assert_same_bits(found, results[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_large_batches_give_the_same_rows_with_any_number_of_threads(dtype, weighted):
    batches = [batch(3000, 50_000, seed, 3, weighted) for seed in range(2)]
    assert min(2 * len(batches[0]["grown"].flat), sum(len(batches[0][name].flat) for name in COMBINERS)) > SPLIT
    results = []
    for count in (1, 2, 3, 5):
        with threads(count):
            results.append(train(tables(3000, dtype), batches, Adagrad, calls=2))
    for found in results[1:]:
        assert_same_bits(found, results[0])


@pytest.mark.parametrize("dim", [5, 16, 32])
def test_many_plain_ids_give_the_same_rows_with_any_number_of_threads(dim):
    ids = torch.randint(0, 9999, (SPLIT + 1000,), generator=torch.Generator().manual_seed(0))
    batches, results = [IdBlock.from_ragged({"t": ids})], []
    for count in (1, 2, 3, 5):
        with threads(count):
            results.append(train([Table("t", dim, rows=9999)], batches, RowWiseAdagrad))
    for found in results[1:]:
        assert_same_bits(found, results[0])


def test_a_large_batch_is_updated_like_many_small_ones():
    """Exact gradients: the parts of a large table come to what one part comes to."""
    weights = []
    for cuts in (1, 100):
        emb = EmbeddingCollection([Table("t", 6, rows=1000, init=Constant(0.0))])
        rows = SGD(emb, lr=1.0)
        ids = torch.randint(0, 1000, (300_000,), generator=torch.Generator().manual_seed(0))
        grad = torch.randint(-8, 9, (300_000, 6), generator=torch.Generator().manual_seed(1)) / 8.0
        for part, of_part in zip(ids.chunk(cuts), grad.chunk(cuts), strict=True):
            emb({"t": part}).flat.backward(of_part)
            rows.step()
        weights.append(emb["t"].weight.clone())
    assert torch.equal(*weights)
    assert torch.equal(weights[0], -torch.zeros(1000, 6).index_add(0, ids, grad))


def test_the_number_of_threads_may_change_in_the_middle_of_a_step():
    batches = [batch(300, 200, seed, 4, False) for seed in range(3)]
    expected = train(tables(300), batches, Adam)
    emb = EmbeddingCollection(tables(300))
    rows = Adam(emb, lr=0.3)
    for number, block in enumerate(batches):
        with threads(1 + number):
            out = emb(block)
        generator = torch.Generator().manual_seed(number)
        parts = [out[name] for name in sorted(out.pooled)] + [out[name].flat for name in sorted(out.sequences)]
        with threads(5 - number):
            torch.autograd.backward(parts, [torch.randn(part.shape, generator=generator) for part in parts])
        with threads(2 + number):
            rows.step()
    assert_same_bits({name: _parts(emb, name) for name in emb.tables}, expected)


def test_the_order_of_tables_does_not_matter():
    batches = [batch(100, 50, seed, 4, True) for seed in range(3)]
    results = [train(list(order), batches, Adagrad) for order in permutations(tables(100))]
    for found in results[1:]:
        assert_same_bits(found, results[0])


def test_two_threads_that_train_at_once_do_not_disturb_each_other():
    batches = [batch(300, 2000, seed, 4, False) for seed in range(4)]
    expected = train(tables(300), batches, Adam)
    found: list[Any] = [None, None]

    def run(number: int) -> None:
        found[number] = train(tables(300), batches, Adam)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one in found:
        assert_same_bits(one, expected)


def test_gradients_of_several_threads_all_reach_the_rows():
    """Backward calls of one thread come in the middle of the step of another."""
    emb = EmbeddingCollection([Table("t", 16, rows=100, init=Constant(0.0)), Table("u", 4, capacity=9000)])
    rows, lock = SGD(emb, lr=1.0), threading.Lock()

    def run(number: int) -> None:
        for turn in range(100):
            ids = torch.arange(100)
            emb({"t": ids, "u": ids + 200 * number + turn}).flat.sum().backward()
            with lock:
                rows.step()

    workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert emb["t"].weight.unique().tolist() == [-400]
    assert emb.group.pending("t") == 0


# -- initial values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", [Uniform(), Uniform(3.0), Normal(), Normal(2.0), Constant(0.3), Constant()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 3, 4, 16, 65, 300])
def test_rows_begin_as_the_reference_says_bit_for_bit(init, dtype, dim):
    fixed = Table("fixed", dim, rows=50, init=init, dtype=dtype)
    dynamic = Table("dynamic", dim, capacity=50, init=init, dtype=dtype)
    emb, ids = EmbeddingCollection([fixed, dynamic], seed=9), torch.tensor([0, -1, 2**63 - 1, -(2**63), 2**32 + 5])
    emb({"fixed": torch.arange(5), "dynamic": ids})
    for name, found, wanted in (
        ("fixed", emb["fixed"].weight, torch.arange(50)),
        ("dynamic", emb.lookup("dynamic", ids), ids),
    ):
        expected = initial_rows(init, xxh64(name, 9), wanted, dim, dtype)
        kind = torch.int32 if dtype == torch.float32 else torch.int16
        assert torch.equal(found.view(kind), expected.view(kind))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_rows_begin_alike_with_any_number_of_threads(count):
    expected = initial_rows(Uniform(), xxh64("t", 0), torch.arange(10_000), 7, torch.float32)
    with threads(count):
        assert torch.equal(EmbeddingCollection([Table("t", 7, rows=10_000)])["t"].weight, expected)


# -- child processes ---------------------------------------------------------------------------------------------


FEATURES = {f"f{number}": 500 for number in range(6)}  # several, so that the work is shared among threads


def child_table() -> list[Table]:
    return [
        Table("fixed", 4, rows=500, features=list(FEATURES)[:3]),
        Table("grown", 4, capacity=2000, features=list(FEATURES)[3:]),
    ]


def few_steps(emb: EmbeddingCollection, seed: int) -> float:
    rows = Adagrad(emb, lr=0.1)
    for turn in range(3):
        emb(random_block(FEATURES, 300, seed + turn)).flat.sum().backward()
        rows.step()
    rows.release()
    return sum(float(emb[name].export().rows.double().sum()) for name in emb.tables)


def child(emb: EmbeddingCollection, count: int, result: Any) -> None:
    torch.set_num_threads(count)
    found = few_steps(emb, 100)
    with torch.no_grad():
        found += float(emb.eval()(random_block(FEATURES, 300, 7)).flat.double().sum())
    result.send(found)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_forked_child_looks_up_and_trains(count):
    """With as many threads as its parent, fewer or more: those of the parent are not there to be waited for."""
    context = multiprocessing.get_context("fork")
    with threads(2):
        emb = EmbeddingCollection(child_table())
        few_steps(emb, 0)
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(emb, count, send))
        process.start()
        try:
            assert receive.poll(60), "the child hangs"
            found = receive.recv()
        finally:
            process.kill()
            process.join()
        expected = few_steps(emb, 100)
        with torch.no_grad():
            expected += float(emb.eval()(random_block(FEATURES, 300, 7)).flat.double().sum())
    assert found == expected


def test_seed_and_name_are_all_that_counts():
    one = EmbeddingCollection([Table("a", 3, rows=5), Table("b", 3, rows=5)], seed=1)
    other = EmbeddingCollection([Table("b", 3, rows=9, dtype=torch.float32)], seed=1)
    assert torch.equal(one["b"].weight, other["b"].weight[:5])
    assert not torch.equal(one["a"].weight, one["b"].weight)


def test_growth_of_a_dynamic_table_moves_no_row():
    emb = EmbeddingCollection([Table("t", 64, capacity=200_000)])
    expected = {}
    for start in range(0, 40_000, 8000):
        ids = torch.arange(start, start + 8000) * 7919
        out = emb({"t": ids}).flat.detach().clone()
        expected[start] = (ids, out)
        emb["t"].advance()
    for ids, rows in expected.values():
        assert torch.equal(emb.lookup("t", ids), rows)


def test_ragged_and_fixed_forms_of_the_same_bags_train_alike():
    ids = torch.randint(0, 50, (40, 3), generator=torch.Generator().manual_seed(0))
    forms = [ids, Ragged.from_padded(ids, torch.full((40,), 3))]
    for combiner in COMBINERS:
        results = []
        for form in forms:
            emb = EmbeddingCollection([Table("t", 9, rows=50, combiner=combiner)])
            rows = Adam(emb, lr=0.1)
            out = emb({"t": form})["t"]
            out = out.flat if isinstance(out, Ragged) else out
            out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)))
            rows.step()
            results.append(emb["t"].weight.clone())
        assert torch.equal(*results), combiner
