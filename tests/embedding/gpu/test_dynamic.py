"""Dynamic tables of a group on the device: they train as those of the host do, and no bit differs from fixed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import LFU, LRU, TTL, MinCount
from hybridrec.embedding.gpu.fixed_slots import NO_GRAPH
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.news import News
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.initial import Constant
from hybridrec.ops.hash_index import reference
from hybridrec.types import IdBlock
from tests.embedding.gpu.late import Device
from tests.embedding.gpu.on_device import QUICK, SIZES, OnDevice, ids, lists
from tests.gpu import DEVICE, INTERPRETED, needs_gpu, wait_for_the_device

pytestmark = needs_gpu

OPTIMIZERS = {
    "sgd": lambda m: hr.optim.SGD(m, lr=0.125),
    "rowwise_adagrad": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.125),
    "adam": lambda m: hr.optim.Adam(m, lr=0.125),
}


def store(table: hr.Table, seed: int) -> DeviceStore:
    return DeviceHashStore(table, seed, DEVICE, slots=2) if table.dynamic else DeviceStore(table, seed, DEVICE)


def on_device(tables: Sequence[hr.Table]) -> OnDevice:
    return OnDevice(hr.EmbeddingCollection(tables, seed=3), QUICK if INTERPRETED else SIZES[-1], store)


class One:
    """A table of its own on the device, whose lookups and steps are by id."""

    def __init__(self, make: Callable[[Any], Any] = OPTIMIZERS["sgd"], capacity: int = 3, **options: Any) -> None:
        self.emb = on_device([hr.Table("user", 2, capacity=capacity, init=Constant(1.0), **options)])
        self.optimizer = make(self.emb)
        found = self.emb.stores["user"]
        assert isinstance(found, DeviceHashStore)
        self.store = found

    def __call__(self, *given: int) -> Tensor:
        flat, sequences = self.emb(IdBlock.from_ragged({"user": torch.tensor(given)}))
        return sequences[0] if sequences else flat

    def train(self, *given: int) -> None:
        self(*given).sum().backward()
        self.optimizer.step()

    def ids(self) -> list[int]:
        return self.store.ids().tolist()

    def look_until_told(self, *given: int) -> None:
        """A lookup sends for what came of those before it; that is there at once, or when a card has done it."""
        self(*given)
        if not INTERPRETED:
            wait_for_the_device()
            self(*given)

    def behind(self, monkeypatch: pytest.MonkeyPatch) -> Device:
        """A device that tells nothing until a test says so, or somebody waits."""
        device, dynamic = Device(wait_for_the_device), self.emb.group.dynamic  # pyright: ignore
        assert dynamic is not None
        monkeypatch.setattr(dynamic, "_news", News(dynamic.rows.standing, dynamic._asks(), device.record))
        return device


def tables(sizes: dict[str, Any]) -> list[hr.Table]:
    """Tables whose features share them, are pooled in all ways, and lie in another order than they are declared."""
    return [
        hr.Table("a", 8, features=["a", "a_list"], combiner={"a": "sum", "a_list": "mean"}, **sizes["a"]),
        hr.Table("b", 8, **sizes["b"]),
        hr.Table("c", 5, features=["c_seq", "c"], combiner={"c": "max", "c_seq": "none"}, **sizes["c"]),
    ]


def block(batch: int) -> IdBlock:
    of_a = {"a": ids(40, batch), "b": ids(9, batch), "a_list": lists(40, 2, batch)}  # means of two are exact
    return IdBlock.from_ragged({**of_a, "c": ids(30, batch, 2), "c_seq": lists(30, 2, batch)})


def backward(homes: Sequence[Any], given: IdBlock) -> None:
    """The same gradients for all, whose sums are exact in any order."""
    outputs = [home(given) for home in homes]
    parts = [[flat, *sequences] for flat, sequences in outputs]
    factors = [torch.randint(-8, 9, part.shape) / 8 for part in parts[0]]
    for mine in parts:
        sum((part * f.to(part)).sum() for part, f in zip(mine, factors, strict=True)).backward()  # pyright: ignore


@pytest.mark.parametrize("kind", OPTIMIZERS if not INTERPRETED else ["adam"])
def test_training_is_that_of_fixed_tables_bit_for_bit_while_memory_grows(kind: str) -> None:
    torch.manual_seed(0)
    few = {"a": {"rows": 40}, "b": {"rows": 9}, "c": {"rows": 30, "dtype": torch.bfloat16}}
    any_id = {"a": {"capacity": 40}, "b": {"rows": 9}, "c": {"capacity": 90, "dtype": torch.bfloat16}}
    fixed, dynamic = on_device(tables(few)), on_device(tables(any_id))
    optimizers = [OPTIMIZERS[kind](home) for home in (fixed, dynamic)]
    backward((fixed, dynamic), block(2))
    for batch in (5, 1):
        backward((fixed, dynamic), block(batch))
        for optimizer in optimizers:
            optimizer.step()
    for name in ("a", "c"):
        found = dynamic.stores[name].export()
        wanted = fixed.stores[name].read(found.ids)
        assert len(found.ids) > 2
        assert torch.equal(found.rows, wanted.rows)
        assert all(torch.equal(found.state[part], wanted.state[part]) for part in wanted.state)
    ground = dynamic.group.ground  # pyright: ignore
    assert not any(places.any() for places in (ground.places, *(each.tensor for each in ground.growing.values())))


POLICIES = [(LRU(), MinCount(2)), (TTL(1), None), (LFU(), None), (None, None)]


@pytest.mark.parametrize(("eviction", "admission"), POLICIES[: 2 if INTERPRETED else None], ids=str)
def test_rows_come_and_go_as_on_the_host(eviction: Any, admission: Any) -> None:
    torch.manual_seed(1)
    kept = {"eviction": eviction, "admission": admission}
    made = [hr.Table("a", 4, capacity=14, features=["a", "a_list"], combiner="mean", **kept), hr.Table("b", 4, rows=9)]
    cpu, gpu = hr.EmbeddingCollection(made, seed=3), on_device(made)
    optimizers = [hr.optim.Adagrad(home, lr=0.125) for home in (cpu, gpu)]
    for _ in range(4):
        given = IdBlock.from_ragged({"a": ids(40, 4) - 3, "b": ids(9, 4), "a_list": lists(40, 2, 4)})
        wanted, (got, _) = cpu(given).flat, gpu(given)
        torch.testing.assert_close(got.cpu(), wanted, atol=1e-5, rtol=1e-5)
        factor = torch.randint(-8, 9, wanted.shape) / 8
        (wanted * factor).sum().backward()
        (got * factor.to(got)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    ours, theirs = gpu.stores["a"].export(), cpu["a"].export()
    assert ours.ids.tolist() == theirs.ids.tolist()
    torch.testing.assert_close(ours.rows, theirs.rows, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.state["sum"], theirs.state["sum"], atol=1e-5, rtol=1e-4)
    assert gpu.stores["a"].counters() == cpu["a"].counters()
    assert gpu.stores["a"].clock == cpu["a"].clock
    gpu.eval()
    before = gpu.stores["a"].counters()
    unknown = IdBlock.from_ragged({"a": torch.tensor([999]), "b": torch.tensor([1]), "a_list": torch.tensor([999])})
    assert not gpu(unknown)[0][:, :8].any()
    assert gpu.stores["a"].counters() == before


def test_rows_in_flight_stay_and_too_many_are_told_by_the_next_lookup_that_can_know() -> None:
    one = One(capacity=4)
    one.train(7, 8)
    first, second = one(1, 2), one(3, 1)
    assert not one(4, 5).any()  # there is room for one
    told = (
        r"table 'user' holds 4 rows and 2 more are needed, but only 1 may be evicted: an earlier lookup took new ids "
        r"for zeros, and no row was lost; give it a larger capacity, or take smaller batches"
    )
    one.emb.eval()
    with pytest.raises(ValueError, match=told):
        one.look_until_told(1)
    one.emb.train()
    assert {1, 2, 3} < set(one.ids())
    (first.sum() + second.sum()).backward()
    one.optimizer.step()
    assert one.store.lookup(torch.tensor([1, 2, 3]))[:, 0].tolist() == [0.75, 0.875, 0.875]
    one.train(4, 5, 6)
    assert {4, 5, 6} <= set(one.ids())


def test_lookups_go_on_until_the_device_has_told_that_there_were_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    one = One(capacity=4)
    device = one.behind(monkeypatch)
    held = one(1, 2, 3)
    assert not one(4, 5).any()
    one.emb.eval()
    assert one(1).all()  # it has sent for what the next one looks at
    device.done = device.launched
    with pytest.raises(ValueError, match=r"table 'user' holds 4 rows and 1 more are needed.*took new ids for zeros"):
        one(1)
    assert one(1).all()  # it is told once
    assert (len(held), device.waited) == (3, [])


def test_where_no_lookup_follows_the_group_tells_that_there_were_too_many() -> None:
    one = One(capacity=4)
    held = one(1, 2, 3)
    assert not one(4, 5).any()
    with pytest.raises(ValueError, match="table 'user' holds 4 rows and 1 more are needed, but only 0 may be evicted"):
        one.emb._look_up.group.check()
    one.emb._look_up.group.check()  # it is told once
    assert len(held) == 3


def test_a_lookup_that_takes_no_gradient_ends_its_flight() -> None:
    one = One(capacity=3)
    with torch.inference_mode():
        for number in range(3):
            one(number, number + 10)
    assert {2, 12} < set(one.ids())
    one.train(2, 12, 20)  # in memory that was made meanwhile
    assert one.ids() == [2, 12, 20]


def test_late_gradients_reach_the_rows_that_were_read_or_none() -> None:
    one = One(lambda m: hr.optim.Adagrad(m, lr=1.0, initial_accumulator_value=1.0), combiner="none")
    late = one(1, 2, 3)
    one.optimizer.step()
    timely = one(3, 9)  # 1 goes, and 9 has its slot
    late.backward(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], device=DEVICE))
    timely.backward(torch.tensor([[4.0, 4.0], [5.0, 5.0]], device=DEVICE))
    one.optimizer.step()
    data = one.store.export()
    assert data.ids.tolist() == [2, 3, 9]
    assert data.state["sum"][:, 0].tolist() == [1 + 4, 1 + 49, 1 + 25]
    assert one.store.counters()["dropped_gradients"] == 1


def test_a_gradient_that_comes_when_its_row_has_expired_is_dropped_and_counted_as_on_the_host() -> None:
    one = One(capacity=9, eviction=TTL(1))
    cpu = hr.EmbeddingCollection([one.store.table], seed=3)
    rows, found = hr.optim.SGD(cpu, lr=0.125), []
    of_host = cpu, rows, lambda *ids: cpu(IdBlock.from_ragged({"user": torch.tensor(ids)})).flat
    of_device = one.emb, one.optimizer, one
    for _, optimizer, look in (of_host, of_device):
        late = look(1, 2, 2)
        optimizer.step()
        late.sum().backward()  # of rows that are still there
        optimizer.step()
        late = look(3, 4, 4)
        for _ in range(2):
            optimizer.step()
        late.sum().backward()
        look(4)  # which starts anew, and takes the gradients that were meant for it before
        optimizer.step()
    for store in (cpu["user"], one.store):
        data = store.export()
        found.append((store.counters(), data.ids.tolist(), data.rows.tolist()))
    assert found[0] == found[1]
    assert found[1][0]["dropped_gradients"] == 1, "of id 3"


@pytest.mark.parametrize("forget", ["clear", "erase"])
def test_rows_that_are_forgotten_drop_their_gradients(forget: str) -> None:
    one = One(OPTIMIZERS["sgd"])
    out = one(1, 2)
    one.store.clear() if forget == "clear" else one.store.erase(torch.tensor([1, 2]))
    one(7, 8)
    out.sum().backward()
    one.optimizer.step()
    assert one.store.lookup(torch.tensor([7, 8])).tolist() == [[1, 1], [1, 1]]
    assert one.store.counters()["dropped_gradients"] == 2


def test_the_gradient_of_weights_does_not_read_the_row_that_took_the_place() -> None:
    one = One(capacity=2)
    weights = torch.tensor([1.0, 2.0], requires_grad=True)
    out, _ = one.emb(IdBlock.from_ragged({"user": torch.tensor([1, 2])}, {"user": weights}))
    one.optimizer.step()
    one(8, 9)
    one.store.load(torch.tensor([8, 9]), torch.full((2, 2), 1000.0))
    out.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [0, 0]


@pytest.mark.parametrize("way", ["untrained", "eval"])
def test_weights_have_the_gradient_of_the_rows_that_were_looked_up_though_they_are_gone(way: str) -> None:
    kinds = {kind: kind for kind in ("sum", "mean", "sqrtn", "max", "none")}
    options: Any = {"features": list(kinds), "combiner": kinds, "dtype": torch.float16, "trainable": way == "eval"}
    torch.manual_seed(1)
    given = IdBlock.from_ragged({**dict.fromkeys(kinds, lists(3, 3, 4)), "item": ids(9, 4)})
    parts, found = [torch.randn(4, 25), torch.randn(len(given["none"].flat), 5)], []
    for capacity in (3, 100):  # of which one has room for three rows more
        emb = on_device([hr.Table("user", 5, capacity=capacity, **options), hr.Table("item", 5, rows=9)])
        emb.stores["user"].load(torch.arange(3), torch.arange(15.0).view(3, 5) - 7)
        emb.stores["user"].advance()
        weights = torch.linspace(0.5, 2, len(given.values)).requires_grad_()
        flat, sequences = emb.train(way != "eval")(replace(given, weights=weights))
        emb.train()
        for others in ([7, 8, 9], [10]) if capacity == 3 else ():
            with torch.no_grad():
                emb(IdBlock.from_ragged({**dict.fromkeys(kinds, torch.tensor(others)), "item": ids(9, len(others))}))
        assert capacity == 100 or not set(range(3)).intersection(emb.stores["user"].ids().tolist())
        loss = sum((part * of.to(part)).sum() for part, of in zip((flat, *sequences), parts, strict=True))
        found += torch.autograd.grad(loss, weights)  # pyright: ignore
    assert found[1].abs().max() > 0.01
    assert torch.equal(*found)


def test_rows_that_are_loaded_between_lookups_have_memory_and_are_found() -> None:
    one = One(capacity=100)
    one.train(1)
    one.store.load(torch.arange(10, 30), torch.full((20, 2), 5.0))
    one.train(*range(40, 70))  # which the host must make room for beside them
    assert one.ids() == [1, *range(10, 30), *range(40, 70)]
    assert one(10, 40).tolist() == [[5.0, 5.0], [0.875, 0.875]]
    assert sorted(reference.entries(one.store.slots.index)) == one.ids()


def test_a_row_that_was_read_in_eval_takes_no_gradient_when_it_is_gone() -> None:
    one = One(capacity=2)
    one.train(1, 2)
    one.emb.eval()
    read = one(1, 2)
    one.emb.train()
    one(3)  # 1 goes, in the same step
    read.sum().backward()
    one.optimizer.step()
    assert one.store.lookup(torch.tensor([2, 3])).tolist() == [[0.75, 0.75], [1, 1]]
    assert one.store.counters()["dropped_gradients"] == 1


def test_memory_is_there_for_all_ids_that_have_come_since_the_host_last_knew() -> None:
    one = One(capacity=20)
    dynamic = one.emb.group.dynamic  # pyright: ignore
    assert dynamic is not None
    assert not dynamic.make_room({"user": 3})
    assert not dynamic.make_room({"user": 4})  # nobody has asked the device in between
    assert one.store.slots.slots >= 7
    assert dynamic.make_room({"user": 14})  # some may have to go
    assert one.store.slots.slots == 20
    dynamic.watch()  # sends for what is known when the device is done
    wait_for_the_device()
    assert not dynamic.make_room({"user": 20})  # none had come


def test_ids_count_as_rows_until_the_device_has_told_that_none_came(monkeypatch: pytest.MonkeyPatch) -> None:
    one = One(capacity=20)
    device, dynamic = one.behind(monkeypatch), one.emb.group.dynamic  # pyright: ignore
    assert dynamic is not None
    assert dynamic.make_room({"user": 21})
    dynamic.watch()
    assert dynamic.make_room({"user": 0})  # it was asked, and has not told
    device.done = device.launched
    assert not dynamic.make_room({"user": 20})
    assert device.waited == []


# -- on a card -------------------------------------------------------------------------------------------------


on_a_card = pytest.mark.skipif(INTERPRETED, reason="a collection on 'cpu' has its rows in native memory")


def whole(device: str, capacity: int) -> tuple[hr.EmbeddingCollection, Any]:
    emb = hr.EmbeddingCollection(
        [hr.Table("user", 8, capacity=capacity, features=["user", "friends"]), hr.Table("item", 8, rows=1000)],
        seed=3,
        device=device,
    )
    return emb, hr.optim.Adagrad(emb, lr=0.125)


@on_a_card
@pytest.mark.parametrize("capacity", [10**9, 60_000])
def test_a_collection_trains_as_on_the_host_while_its_table_grows_or_is_full(capacity: int) -> None:
    homes = [whole(device, capacity) for device in ("cpu", "cuda")]
    torch.manual_seed(2)
    for turn in range(20):
        friends = torch.randint(turn * 4000, turn * 4000 + 30_000, (8192, 2))
        users, items = torch.randint(0, 50_000, (8192,)), torch.randint(0, 1000, (8192,))
        given = IdBlock.from_ragged({"user": users, "friends": friends, "item": items})
        factor = torch.randint(-8, 9, (8192, 24)) / 8
        for emb, rows in homes:
            flat = emb(given.to(emb.device)).flat
            (flat * factor.to(flat)).sum().backward()
            rows.step()
    (cpu, _), (gpu, _) = homes
    ours, theirs = gpu["user"].export(), cpu["user"].export()
    assert torch.equal(ours.ids, theirs.ids)
    torch.testing.assert_close(ours.rows, theirs.rows, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.state["sum"], theirs.state["sum"], atol=1e-4, rtol=1e-4)
    assert gpu["user"].counters() == cpu["user"].counters()


@on_a_card
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_table_that_knows_its_ids_is_looked_up_and_updated_without_a_wait() -> None:
    emb, rows = whole("cuda", 10**6)
    given = {"user": torch.arange(64), "friends": torch.arange(64), "item": torch.arange(64)}
    block = IdBlock.from_ragged(given).to("cuda")

    def step() -> None:
        emb(block).flat.sum().backward()
        rows.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_under_way_take_no_memory_for_ids_that_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that tells nothing before somebody waits: of 8 batches, ids of two at most are taken for new ones."""
    one, given = One(capacity=10**6), [7] * 16
    one.behind(monkeypatch)
    for _ in range(8):
        one.train(*given)
    assert one.ids() == [7]
    assert one.store.slots.slots <= 4 * 16  # twice what is needed


@on_a_card
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_table_grows_without_a_wait() -> None:
    emb, rows = whole("cuda", 10**9)
    items = torch.arange(8192) % 1000
    blocks = [
        IdBlock.from_ragged({"user": users, "friends": users, "item": items}).to("cuda")
        for users in (torch.arange(8192) + 8192 * turn for turn in range(12))
    ]

    def step(block: IdBlock) -> None:
        emb(block).flat.sum().backward()
        rows.step()

    for block in blocks[:3]:
        step(block)
    torch.cuda.synchronize()
    store = emb["user"]
    assert isinstance(store, DeviceHashStore)
    before = store.slots.slots
    try:
        torch.cuda.set_sync_debug_mode("error")
        for block in blocks[3:]:
            step(block)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert store.slots.slots > before
    assert len(store) == 12 * 8192


@on_a_card
def test_a_lookup_of_ids_that_may_differ_is_no_part_of_a_graph_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emb, rows = whole("cuda", 1000)
    given = {"user": torch.arange(8), "friends": torch.arange(8), "item": torch.arange(8)}
    block = IdBlock.from_ragged(given).to("cuda")
    emb(block)
    with monkeypatch.context() as within:
        within.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match=NO_GRAPH):
            emb(block)
    emb(block).flat.sum().backward()
    rows.step()
    assert len(emb["user"]) == 8
