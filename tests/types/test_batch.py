from __future__ import annotations

import copy
import pickle
import re
import weakref
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset

from hybridrec.types import Batch, IdBlock, Ragged


def batch() -> Batch:
    ids = IdBlock.from_ragged(
        {"user": torch.tensor([7, 8, 9]), "tags": Ragged.from_lists([[1], [], [2, 3]])},
        weights={"tags": torch.tensor([0.5, 0.25, 2.0])},
    )
    return Batch(
        ids,
        dense=torch.tensor([[1.0, 2.0], [3.0, float("nan")], [5.0, 6.0]]),
        label=torch.tensor([0.0, 1.0, 0.0]),
        weight=torch.tensor([1.0, 1.0, 0.5]),
        extra={
            "title": Ragged.from_lists(["a", "", "bcd"]),
            "nest": Ragged.from_lists([[[1]], [], [[2], [3, 4]]]),
        },
        dense_names=("age", "price"),
        label_names=("click",),
    )


def in_arena(plain: Batch, pool: int = 0, outside: Callable[[Tensor], bool] = lambda t: False) -> Batch:
    """The batch with its tensors in one arena, each at a multiple of 64 bytes, as a loader makes it."""
    places, used = [], 0

    def measure(tensor: Tensor) -> Tensor:
        nonlocal used
        places.append(used)
        used += -(-tensor.nbytes // 64) * 64
        return tensor

    plain.map_tensors(measure)
    arena = torch.zeros(pool + used + 3, dtype=torch.uint8)[pool:]
    offsets = iter(places)

    def put(tensor: Tensor) -> Tensor:
        start = next(offsets)
        if outside(tensor):
            return tensor
        view = arena[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return view.copy_(tensor)

    return replace(plain.map_tensors(put), arena=arena)


def tensors(of: Batch) -> list[Tensor]:
    found = []
    of.map_tensors(lambda t: found.append(t) or t)
    return found


class Copies(TorchDispatchMode):
    """Counts the tensors that are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("pool", [0, 64])
@pytest.mark.parametrize("move", [lambda b: b.to("meta"), lambda b: b.clone()], ids=["to", "clone"])
def test_an_arena_is_copied_once_and_all_tensors_view_the_copy(move, pool):
    source = in_arena(batch(), pool)
    with Copies() as copies:
        moved = move(source)
    assert copies.count == 1
    assert moved.arena is not None
    assert moved.arena is not source.arena
    storages = {t.untyped_storage()._cdata for t in tensors(moved)}
    assert storages == {moved.arena.untyped_storage()._cdata}
    assert {t.device for t in tensors(moved)} == {moved.arena.device}
    assert [(t.shape, t.dtype, t.stride()) for t in tensors(moved)] == [
        (t.shape, t.dtype, t.stride()) for t in tensors(source)
    ]


def test_a_copied_arena_keeps_all_values_and_leaves_the_first_alone():
    source = in_arena(batch(), pool=64)
    twin = source.clone()
    source.arena.fill_(255)
    assert twin.equal(batch())
    assert not source.equal(batch())


def test_a_copy_can_be_copied_again():
    assert in_arena(batch(), pool=64).clone().clone().equal(batch())


def test_tensors_outside_the_arena_are_moved_one_by_one():
    source = in_arena(batch(), outside=lambda t: t.dtype == torch.uint8)
    with Copies() as copies:
        twin = source.clone()
    assert copies.count == 2
    assert twin.equal(batch())
    source.extra["title"].flat.fill_(65)
    assert twin.extra["title"].to_list() == ["a", "", "bcd"]


def test_without_an_arena_every_tensor_is_moved():
    moved = batch().to("meta")
    assert moved.arena is None
    assert {t.device.type for t in tensors(moved)} == {"meta"}
    assert (moved.dense_names, len(moved)) == (("age", "price"), 3)


def test_moving_to_where_it_is_copies_nothing():
    source = in_arena(batch())
    with Copies() as copies:
        same = source.to("cpu")
    assert copies.count == 0
    assert same.equal(source)
    assert same.dense.data_ptr() == source.dense.data_ptr()


@pytest.mark.parametrize("arena", [True, False])
def test_pin_memory_pins_the_arena_or_else_every_tensor(monkeypatch, arena):
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda t: pinned.append(t) or t.clone())
    source = in_arena(batch()) if arena else batch()
    assert source.pin_memory().equal(batch())
    assert len(pinned) == (1 if arena else len(tensors(source)))


@pytest.mark.parametrize("arena", [True, False])
def test_record_stream_marks_the_arena_or_else_every_tensor(monkeypatch, arena):
    marked = []
    monkeypatch.setattr(Tensor, "record_stream", lambda t, stream: marked.append(stream))
    source = in_arena(batch()) if arena else batch()
    source.record_stream("side")  # pyright: ignore[reportArgumentType] (a stand-in)
    assert marked == ["side"] * (1 if arena else len(tensors(source)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pinned_arena_goes_to_the_device_and_back():
    pinned = in_arena(batch(), pool=64).pin_memory()
    assert all(t.is_pinned() for t in tensors(pinned) if t.numel())
    there = pinned.to("cuda", non_blocking=True)
    there.record_stream(torch.cuda.current_stream())
    assert {t.device.type for t in tensors(there)} == {"cuda"}
    assert there.to("cpu").equal(batch())


@pytest.mark.parametrize("made", [batch, lambda: in_arena(batch()), lambda: in_arena(batch(), pool=4096)])
def test_pickles_and_deep_copies_are_equal_and_apart(made):
    source = made()
    for twin in (pickle.loads(pickle.dumps(source)), copy.deepcopy(source)):
        assert twin.equal(source)
        assert (twin.arena is None) == (source.arena is None)
        twin.dense.fill_(0)
        assert source.equal(batch())


def test_a_pickle_holds_the_arena_once_and_not_the_pool_around_it():
    source = in_arena(batch(), pool=100_000)
    assert len(pickle.dumps(source)) < 10_000
    twin = pickle.loads(pickle.dumps(source))
    assert {t.untyped_storage()._cdata for t in tensors(twin)} == {twin.arena.untyped_storage()._cdata}


def test_a_shallow_copy_shares_memory():
    source = in_arena(batch())
    copy.copy(source).dense.fill_(4)
    assert source.dense.tolist() == [[4, 4]] * 3


class Once(IterableDataset):
    def __iter__(self):
        yield in_arena(batch())


def test_a_data_loader_worker_hands_batches_over():
    (received,) = DataLoader(Once(), batch_size=None, num_workers=1)
    assert received.equal(batch())
    assert received.arena is not None


def test_repr_shows_features_columns_rows_and_device():
    assert repr(in_arena(batch())).split("\n") == [
        "Batch(3 rows, cpu, arena of 0.0 MiB)",
        "  ids     2 features, 3 rows, 6 ids, weighted",
        "    user  1 per row",
        "    tags  ragged, mean 1",
        "  dense   [3, 2] float32: age, price",
        "  label   [3] float32: click",
        "  weight  [3] float32",
        "  extra   title: 3 utf8 strings, mean length 1.333",
        "          nest: 3 lists of lists of int64, mean lengths 1 and 1.333",
    ]


def test_repr_stops_after_twelve_names():
    wide = Batch(
        IdBlock.from_ragged({}, batch_size=1),
        torch.zeros(1, 20),
        dense_names=tuple(f"d{n}" for n in range(20)),
    )
    assert "d11, … 8 more" in repr(wide)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense": torch.zeros(3)}, "dense must be floating-point [3, n]; without dense features n is 0"),
        ({"dense": torch.zeros(2, 2)}, "got torch.float32 [2, 2]"),
        ({"dense": torch.zeros(3, 2, dtype=torch.int64)}, "dense must be floating-point"),
        ({"dense": torch.zeros(3, 1)}, "dense has 1 columns but 2 names: age, price"),
        ({"label": torch.zeros(2)}, "label must be [3] or [3, k], got torch.float32 [2]"),
        ({"label": torch.zeros(3, 1, 1)}, "label must be [3] or [3, k]"),
        ({"label": torch.zeros(3, 2)}, "label has 2 columns but 1 names: click"),
        ({"label": None}, "label has 0 columns but 1 names: click"),
        ({"weight": torch.zeros(3, 1)}, "weight must be floating-point [3]"),
        ({"extra": {"title": Ragged.from_lists(["a"])}}, "extra column 'title' has 1 rows, the batch has 3"),
        ({"extra": {"title": torch.tensor(1)}}, "extra column 'title' must be [3, …]"),
        ({"weight": torch.ones(3, device="meta")}, "weight is on meta but ids are on cpu"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(batch(), **change)


def test_an_arena_of_anything_but_bytes_is_refused():
    with pytest.raises(TypeError, match="contiguous uint8 tensor"):
        replace(batch(), arena=torch.zeros(8))


def test_a_batch_without_rows_is_a_batch():
    empty = Batch(
        IdBlock.from_lists({"tags": []}),
        torch.zeros(0, 2),
        torch.zeros(0),
        extra={"t": Ragged.from_lists([])},
    )
    assert (len(empty), empty.size) == (0, 0)
    assert bool(empty)
    for twin in (empty.clone(), in_arena(empty).clone(), pickle.loads(pickle.dumps(in_arena(empty)))):
        assert twin.equal(empty)
    assert repr(empty).startswith("Batch(0 rows, cpu)")


def test_several_labels_and_unnamed_columns_are_allowed():
    several = replace(batch(), label=torch.zeros(3, 2), label_names=("click", "buy"), dense_names=())
    assert "label   [3, 2] float32: click, buy" in repr(several)
    assert "dense   [3, 2] float32\n" in repr(several)


def test_equal_sees_every_part():
    assert batch().equal(batch())
    for change in (
        {"dense": torch.zeros(3, 2)},
        {"label": torch.zeros(3)},
        {"weight": None},
        {"extra": {}},
        {"extra": {**batch().extra, "title": torch.zeros(3)}},
        {"dense_names": ("age", "cost")},
        {"ids": IdBlock.from_lists({"user": [7, 8, 9]})},
    ):
        assert not batch().equal(replace(batch(), **change))
        assert not replace(batch(), **change).equal(batch())


def test_a_batch_is_a_value_that_can_be_watched():
    made = batch()
    with pytest.raises(FrozenInstanceError):
        made.label = None  # pyright: ignore[reportAttributeAccessIssue] (that is the point)
    gone = weakref.ref(made)
    del made
    assert gone() is None
