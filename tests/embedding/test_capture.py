from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.embedding import LFU, LRU, TTL, EmbeddingCollection, MinCount, Table
from hybridrec.embedding.reference_store import ReferenceStore
from hybridrec.embedding.store import Capture, RowData, Store
from hybridrec.optim import SGD, Adagrad, Adam

TABLES: dict[str, Callable[[torch.dtype], Table]] = {
    "fixed": lambda dtype: Table("item", 3, rows=40, dtype=dtype),
    "lru": lambda dtype: Table("item", 3, capacity=24, eviction=LRU(), dtype=dtype),
    "lfu": lambda dtype: Table("item", 3, capacity=24, eviction=LFU(), dtype=dtype),
    "ttl": lambda dtype: Table("item", 3, capacity=40, eviction=TTL(3), dtype=dtype),
    "counted": lambda dtype: Table("item", 3, capacity=40, admission=MinCount(2), dtype=dtype),
}


def by_id(parts: list[RowData]) -> RowData:
    """The chunks as one, in order of id."""
    ids = torch.cat([part.ids for part in parts])
    order = ids.argsort()

    def joined(columns: list[torch.Tensor | None]) -> torch.Tensor | None:
        return None if columns[0] is None else torch.cat(columns)[order]  # pyright: ignore

    state = {name: joined([part.state[name] for part in parts]) for name in parts[0].state}
    touched, counts = joined([p.touched for p in parts]), joined([p.counts for p in parts])
    return RowData(ids[order], torch.cat([p.rows for p in parts])[order], state, touched, counts)  # pyright: ignore


def assert_same(found: RowData, expected: RowData) -> None:
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.rows, expected.rows)
    assert found.state.keys() == expected.state.keys()
    for name, column in found.state.items():
        assert torch.equal(column, expected.state[name]), name
    for mine, theirs in ((found.touched, expected.touched), (found.counts, expected.counts)):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)  # pyright: ignore


def step(emb: EmbeddingCollection, rows: torch.optim.Optimizer, ids: list[int]) -> None:
    emb({"item": torch.tensor(ids)}).flat.pow(2).sum().backward()
    rows.step()


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(data=st.data())
@settings(max_examples=15)
def test_what_a_capture_reads_is_what_the_store_held_then(kind, dtype, data):
    emb = EmbeddingCollection([TABLES[kind](dtype)])
    rows = data.draw(st.sampled_from([SGD, Adagrad, Adam]))(emb, lr=0.1)
    batch = st.lists(st.integers(0, 39), min_size=1, max_size=10)
    for ids in data.draw(st.lists(batch, min_size=1, max_size=6)):
        step(emb, rows, ids)
    store = emb["item"]
    before = store.snapshot()
    changes: dict[str, Callable[[], object]] = {
        "step": lambda: step(emb, rows, data.draw(batch)),
        "load": lambda: store.load(torch.tensor([3, 7]), torch.ones(2, 3)),
        "erase": lambda: store.erase(torch.tensor([1, 2])),
        "clear": store.clear,
        "view": lambda: store.weight.fill_(7) if kind == "fixed" else None,  # pyright: ignore
        "attach": lambda: rows.release(),  # pyright: ignore
        "state": lambda: emb.load_state_dict(emb.state_dict()),
    }
    with store.capture() as capture:
        assert (capture.clock, capture.rule) == (before.clock, before.rule)
        assert (capture.sketch is None) == (before.sketch is None)
        parts = []
        for part in capture.chunks(data.draw(st.integers(1, 50))):
            parts.append(part)
            change = data.draw(st.sampled_from(["step", *changes]))
            if rows.param_groups:
                changes[change]()
            if change == "attach":
                changes = {"clear": store.clear, "load": changes["load"], "step": store.clear}
    assert_same(by_id(parts), by_id([before.data]))


def test_chunks_come_in_the_order_of_the_rows_in_memory():
    emb = EmbeddingCollection([TABLES["lru"](torch.float32)])
    rows = SGD(emb, lr=0.1)
    step(emb, rows, [9, 2, 5])
    with emb["item"].capture() as capture:
        assert [part.ids.tolist() for part in capture.chunks(2)] == [[9, 2], [5]]


def test_a_store_may_have_several_captures():
    store = EmbeddingCollection([TABLES["fixed"](torch.float32)])["item"]
    first, early = store.export(), store.capture()
    store.load(torch.tensor([3]), torch.ones(1, 3))
    second, late = store.export(), store.capture()
    store.clear()
    assert_same(by_id(list(late.chunks(9))), second)
    assert_same(by_id(list(early.chunks(9))), first)


def test_a_capture_outlives_its_collection():
    emb = EmbeddingCollection([TABLES["fixed"](torch.float32)])
    expected = emb["item"].export()
    capture = emb["item"].capture()
    del emb
    assert_same(by_id(list(capture.chunks(7))), expected)


def test_a_reference_store_is_captured_by_a_copy():
    store: Store = ReferenceStore(Table("item", 2, capacity=9))
    store.release(store.prepare(torch.tensor([4, 1]), train=True))
    capture: Capture = store.capture()
    expected = store.export()
    store.clear()
    assert_same(by_id(list(capture.chunks(1))), expected)


@pytest.mark.parametrize("kind", ["fixed", "lru"])
def test_a_thread_reads_a_capture_while_training_goes_on(kind):
    fixed = Table("item", 16, rows=20_000)
    table = fixed if kind == "fixed" else Table("item", 16, capacity=15_000, eviction=LRU())
    emb = EmbeddingCollection([table])
    rows = Adagrad(emb, lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        step(emb, rows, torch.randint(0, 20_000, (2000,), generator=generator).tolist())
    expected = emb["item"].export()
    parts: list[RowData] = []
    with emb["item"].capture() as capture:
        reader = threading.Thread(target=lambda: parts.extend(capture.chunks(500)))
        reader.start()
        while reader.is_alive():
            step(emb, rows, torch.randint(0, 20_000, (2000,), generator=generator).tolist())
        reader.join()
    assert_same(by_id(parts), expected)


def test_the_norm_of_gradients_does_not_depend_on_where_rows_lie():
    """Rows restored from a snapshot lie in another order than those of a table that has evicted."""
    generator = torch.Generator().manual_seed(1)
    emb = EmbeddingCollection([Table("item", 5, capacity=300, eviction=LRU())])
    rows = SGD(emb, lr=0.1)
    for _ in range(10):
        step(emb, rows, torch.randint(0, 1000, (200,), generator=generator).tolist())
    other = EmbeddingCollection([Table("item", 5, capacity=300, eviction=LRU())])
    theirs = SGD(other, lr=0.1)
    other["item"].restore(emb["item"].snapshot())
    ids = emb["item"].ids()[torch.randint(0, 300, (5000,), generator=generator)]
    grad = torch.randn(5000, 5, generator=generator)
    for each in (emb, other):
        each({"item": ids}).flat.backward(grad)
    assert rows.grad_norm() == theirs.grad_norm()
