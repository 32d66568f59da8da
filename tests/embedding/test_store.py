"""The contract of a store: whatever is done to it, a store holds what the reference store holds."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding import LFU, LRU, TTL, Constant, MinCount, Normal, Probability, Store, Table, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.reference_store import ReferenceStore
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE
from hybridrec.optim.rule import RowRule, RowStep, StateColumn

RULES = {
    "sgd": RowRule("sgd"),
    "momentum": RowRule("momentum", (StateColumn("momentum"),)),
    "rowwise_adagrad": RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True, fill=0.5),)),
    "adam": RowRule("adam", (StateColumn("m"), StateColumn("v"))),
}
LOW, HIGH = -(2**63), 2**63 - 1
IDS = st.lists(st.sampled_from([LOW, -1, 0, 1, 2, 3, 4, 5, HIGH]), max_size=6).map(lambda ids: torch.tensor(ids).long())
SMALL = st.lists(st.integers(0, 6), max_size=6).map(lambda ids: torch.tensor(ids).long())


def operations(ids: st.SearchStrategy) -> st.SearchStrategy:
    kinds = ["train", "train", "update", "update", "read", "load", "erase", "attach", "copy", "clear"]
    return st.lists(st.tuples(st.sampled_from(kinds), ids, st.integers(0, 2**31)), max_size=12)


def numbers(seed: int, rows: int, dim: int) -> torch.Tensor:
    """Multiples of 1/8, so that sums and products are exact in float32 and mostly in halves."""
    return torch.randint(-16, 17, (rows, dim), generator=torch.Generator().manual_seed(seed)) / 8


def do(store: Store, kind: str, ids: torch.Tensor, seed: int, steps: list[int]) -> object:
    """One operation; what comes of it is to be the same for all stores."""
    if kind == "attach":
        rule = list(RULES.values())[seed % len(RULES)]
        return store.attach(rule)
    if kind == "load":
        ids = ids.unique()
        names = {c.name: c for c in store.rule.state} if store.rule else {}
        state = {n: numbers(seed, len(ids), store.dim).abs() for n, c in names.items() if not c.per_row}
        return store.load(ids, numbers(seed, len(ids), store.dim).to(store.dtype), state)
    if kind == "erase":
        return store.erase(ids.unique())
    if kind == "clear":
        return store.clear() if seed % 4 == 0 else None
    if kind == "read":
        return store.lookup(ids)
    slots = store.prepare(ids, train=True)
    rows = store.gather(slots)
    if kind == "train":
        if seed % 2:
            store.release(slots)
        return slots.ids, slots.inverse, slots.live(), rows
    if store.rule is None:
        store.attach(RULES["sgd"])
    assert store.rule is not None
    steps[0] += 1
    lr = {"sgd": 0.5, "momentum": 0.5}.get(store.rule.kind, 0.1)
    given = {"momentum": 0.5, "beta1": 0.5, "beta2": 0.75, "eps": 1e-3}
    store.update(slots, numbers(seed, len(slots), store.dim), RowStep(rule=store.rule, lr=lr, step=steps[0], **given))
    return slots.ids, rows


def outcome(store: Store, *operation: object) -> object:
    try:
        return do(store, *operation)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        return str(error)


def assert_same(ours: object, theirs: object) -> None:
    if isinstance(ours, tuple | list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, torch.Tensor):
        exact = not ours.is_floating_point()
        torch.testing.assert_close(ours, theirs, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    else:
        assert ours == theirs


def contents(store: Store) -> list[object]:
    data = store.export()
    scores = [part for part in (data.touched, data.counts) if part is not None]
    return [len(store), store.clock, data.ids, data.rows, list(data.state), *data.state.values(), *scores]


def agree(native: type[Store], table: Table, todo: list, share: Share = WHOLE) -> None:
    ours, theirs = native(table, 3, share), ReferenceStore(table, 3, share)
    for kind, ids, seed in todo:
        if kind == "copy":
            ours, theirs = copy.deepcopy(ours), copy.deepcopy(theirs)
        else:
            assert_same(*(outcome(store, kind, ids, seed, [seed % 7]) for store in (ours, theirs)))
        assert_same(contents(ours), contents(theirs))
        assert_same(ours.dirty(2), theirs.dirty(2))
    mine = ours.counters()
    assert {name: mine[name] for name in theirs.counters() if name in mine} == {
        name: count for name, count in theirs.counters().items() if name in mine
    }


DYNAMIC = [
    {"eviction": LRU()},
    {"eviction": LFU()},
    {"eviction": TTL(2)},
    {"eviction": None},
    {"admission": Probability(0.5)},
    {"admission": MinCount(3), "eviction": LFU()},
]


@pytest.mark.parametrize("options", DYNAMIC, ids=str)
@given(todo=operations(IDS), capacity=st.integers(1, 6))
def test_a_hash_store_agrees_with_the_reference_store(options, todo, capacity):
    agree(HashStore, Table("user", 3, capacity=capacity, init=Normal(0.1), **options), todo)


@pytest.mark.parametrize("policy", ["hash", "zero"])
@given(todo=operations(SMALL))
def test_a_dense_store_agrees_with_the_reference_store(policy, todo):
    agree(DenseStore, Table("item", 5, rows=7, init=Uniform(0.5), out_of_range=policy), todo)


@given(todo=operations(SMALL), index=st.integers(0, 2), column=st.integers(0, 2))
def test_a_share_of_a_dense_store_agrees_with_the_reference_store(todo, index, column):
    """Most operations name ids of other shares, and are refused alike."""
    agree(DenseStore, Table("item", 5, rows=7, out_of_range="zero"), todo, Share(index, 3, column, 3))
    owned = [(kind, ids[ids % 3 == index], seed) for kind, ids, seed in todo]
    agree(DenseStore, Table("item", 5, rows=7, dtype=torch.bfloat16), owned, Share(index, 3, column, 3))


@given(todo=operations(IDS), index=st.integers(0, 1), column=st.integers(0, 2))
def test_a_share_of_a_hash_store_agrees_with_the_reference_store(todo, index, column):
    table, share = Table("user", 5, capacity=7, eviction=LFU()), Share(index, 2, column)
    agree(HashStore, table, todo, share)
    owned = [(kind, ids[share.owns(table, ids)], seed) for kind, ids, seed in todo]
    agree(HashStore, table, owned, share)


@pytest.mark.parametrize("policy", ["error", "hash", "zero"])
@given(ids=IDS)
def test_ids_out_of_range_are_treated_alike(policy, ids):
    table = Table("item", 2, rows=3, out_of_range=policy)
    assert_same(*(outcome(store, "read", ids, 0, [0]) for store in (DenseStore(table), ReferenceStore(table))))
    assert_same(*(outcome(store, "update", ids, 0, [0]) for store in (DenseStore(table), ReferenceStore(table))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
@given(todo=st.lists(st.tuples(st.just("update"), SMALL, st.integers(0, 2**31)), max_size=8))
def test_half_rows_are_rounded_by_chance_in_the_same_way(dtype, kind, todo):
    size = {"rows": 7} if kind == "fixed" else {"capacity": 7}
    table = Table("user", 9, dtype=dtype, init=Uniform(0.3), **size)
    ours, theirs = (DenseStore if kind == "fixed" else HashStore)(table, 3), ReferenceStore(table, 3)
    for number, (_, ids, seed) in enumerate(todo):
        for store in (ours, theirs):
            do(store, "update", ids, seed, [number])
        assert torch.equal(ours.export().rows, theirs.export().rows)


def stores() -> list[Store]:
    fixed, dynamic = Table("item", 2, rows=4), Table("user", 2, capacity=9, eviction=LFU(), admission=MinCount(2))
    made = [DenseStore(fixed), ReferenceStore(fixed), HashStore(dynamic), ReferenceStore(dynamic)]
    for store in made:
        store.attach(RULES["adam"])
        slots = store.prepare(torch.tensor([1, 1, 3]), train=True)
        store.update(slots, torch.ones(2, 2), RowStep(rule=RULES["adam"], lr=0.1, step=1, beta1=0.9, beta2=0.9))
    return made


BY_KIND = pytest.mark.parametrize("kind", range(4), ids=["dense", "dense reference", "hash", "hash reference"])


@BY_KIND
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copied", "pickled"])
def test_copies_hold_the_same_and_go_their_own_way(kind, twin):
    store = stores()[kind]
    other = twin(store)
    assert_same(contents(other), contents(store))
    assert (other.rule, other.table, other.seed) == (store.rule, store.table, store.seed)
    other.load(torch.tensor([1]), torch.full((1, 2), 9.0))
    assert other.lookup(torch.tensor([1])).tolist() == [[9, 9]]
    assert store.lookup(torch.tensor([1])).tolist() != [[9, 9]]
    for made in (store, other):
        made.prepare(torch.tensor([3, 3]), train=True)
    assert len(store) == len(other)


@BY_KIND
def test_an_export_loads_into_a_new_store(kind):
    store = stores()[kind]
    other = type(store)(store.table)
    other.attach(RULES["adam"])
    other.load(*store.export())
    assert len(other) == len(store)
    assert_same(contents(other)[2:], contents(store)[2:])  # all but the clock


@BY_KIND
def test_all_rows_come_in_order_of_id_also_in_pieces(kind):
    store = stores()[kind]
    ids = store.ids().tolist()
    assert ids == sorted(ids)
    assert [id for id, _ in store] == ids
    assert torch.equal(torch.stack([row for _, row in store]), store.export().rows)
    pieces = list(store.chunks(1))
    assert [part.ids.tolist() for part in pieces] == [[id] for id in ids]
    assert torch.equal(torch.cat([part.state["m"] for part in pieces]), store.export().state["m"])


@BY_KIND
def test_what_cannot_be_loaded_is_refused_and_changes_nothing(kind):
    store = stores()[kind]
    before = contents(store)
    name = store.table.name
    for change, error, message in [
        (
            {"ids": torch.tensor([1.0])},
            TypeError,
            f"table '{name}': ids must be int64 [n] on the cpu, got torch.float32 [1]",
        ),
        ({"rows": torch.ones(1, 3)}, ValueError, f"table '{name}': rows must be [1, 2], got torch.float32 [1, 3]"),
        ({"rows": torch.ones(2, 2)}, ValueError, "rows must be [1, 2]"),
        ({"state": {"sum": torch.ones(1, 2)}}, ValueError, f"table '{name}' has no state 'sum'; it has m, v"),
        ({"state": {"m": torch.ones(1)}}, ValueError, "m must be [1, 2], got torch.float32 [1]"),
        ({"touched": torch.ones(2)}, ValueError, "touched must be [1], got torch.float32 [2]"),
        ({"counts": torch.ones(0)}, ValueError, "counts must be [1]"),
    ]:
        given = {"ids": torch.tensor([1]), "rows": torch.ones(1, 2), "state": None} | change
        with pytest.raises(error, match=re.escape(message)):
            store.load(**given)
    assert_same(contents(store), before)


@BY_KIND
@pytest.mark.parametrize("ids", [torch.tensor([1], dtype=torch.int32), torch.tensor([[1]]), torch.tensor([1.0])])
def test_ids_of_another_type_or_shape_are_refused(kind, ids):
    store = stores()[kind]
    for ask in (store.prepare, store.lookup):
        with pytest.raises(TypeError, match=re.escape(f"got {ids.dtype} {list(ids.shape)} on cpu; convert them with")):
            ask(ids)
    with pytest.raises(TypeError, match="ids must be int64"):
        store.prepare(ids.to("meta"), train=True)


@BY_KIND
def test_a_store_says_what_it_is_and_is_true_even_if_empty(kind):
    store = stores()[kind]
    assert repr(store) == f"{type(store).__name__}({store.table.name!r}, {len(store)} rows of 2 torch.float32)"
    store.clear()
    assert store
    assert store.memory()["rows"] == len(store) * 8


def test_constant_rows_are_restored_by_erasing_them_from_a_fixed_table():
    store = DenseStore(Table("item", 2, rows=3, init=Constant(1)))
    store.attach(RULES["momentum"])
    store.load(torch.arange(3), torch.full((3, 2), 7.0), {"momentum": torch.ones(3, 2)})
    store.erase(torch.tensor([1]))
    assert store.export().rows.tolist() == [[7, 7], [1, 1], [7, 7]]
    assert store.export().state["momentum"].tolist() == [[1, 1], [0, 0], [1, 1]]
