"""Memory that batch after batch is copied into."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hybridrec.train import fixed_batch
from hybridrec.train.fixed_batch import FixedBatch, room, shape_of
from hybridrec.types import Batch, IdBlock
from hybridrec.types.id_block import NO_ID


def batch_of(lists: list[list[int]], weighted: bool = False, **parts: torch.Tensor) -> Batch:
    ids = IdBlock.from_lists({"user": list(range(len(lists))), "seen": lists})
    if weighted:
        ids = dataclasses.replace(ids, weights=torch.arange(len(ids.values), dtype=torch.float32))
    parts.setdefault("label", torch.ones(len(lists)))
    return Batch(ids, torch.rand(len(lists), 2), **parts)  # pyright: ignore


@pytest.mark.parametrize(
    ("large", "few"), [(10, 4), (1 << 20, 4), (1 << 20, 0)], ids=["large ones", "few small ones", "together"]
)
def test_a_filled_batch_is_the_batch_with_room_behind_its_lists(large, few, monkeypatch):
    monkeypatch.setattr(fixed_batch, "LARGE", large)
    monkeypatch.setattr(fixed_batch, "FEW", few)
    fixed = FixedBatch(batch_of([[1], [2, 3], []], weighted=True))
    addresses = [part.data_ptr() for part in (fixed.batch.ids.values, fixed.batch.dense, fixed.batch.ids.offsets)]
    given = batch_of([[7, 8, 9], [], [4]], weighted=True, label=torch.tensor([1.0, 0.0, 1.0]))
    fixed.fill(given)
    made = fixed.batch
    assert made.ids["user"].to_list() == [[0], [1], [2]]
    start = made.ids.starts[1]
    assert made.ids.values[start : start + 4].tolist() == [7, 8, 9, 4]
    assert set(made.ids.values[start + 4 :].tolist()) == {NO_ID}
    assert made.ids.weights is not None
    assert made.ids.weights[start : start + 4].tolist() == [3, 4, 5, 6]
    assert torch.equal(made.ids.offsets, given.ids.offsets)
    assert torch.equal(made.dense, given.dense)
    assert made.label is not None
    assert made.label.tolist() == [1, 0, 1]
    assert addresses == [part.data_ptr() for part in (made.ids.values, made.dense, made.ids.offsets)]


@pytest.mark.parametrize("lists", [[[7, 8, 9], [], [4]], [[7], [8], [9]]], ids=["ragged", "one of each"])
def test_numbers_like_ids_lie_as_ids_do(lists):
    given = batch_of(lists) if [] in lists else Batch(IdBlock.from_lists({"user": [7, 8, 9]}), torch.rand(3, 2))
    fixed = FixedBatch(given)
    more = torch.full_like(fixed.batch.ids.values, 5)
    fixed.fill(given, [(more, given.ids.values + 100)])
    there = fixed.batch.ids.values
    assert torch.equal(more, torch.where(there == NO_ID, NO_ID, there + 100))


def test_ids_of_a_longer_batch_before_are_gone():
    fixed = FixedBatch(batch_of([[1, 2, 3, 4], [5]]))
    fixed.fill(batch_of([[1, 2, 3, 4], [5]]))
    fixed.fill(batch_of([[6], []]))
    start = fixed.batch.ids.starts[1]
    assert fixed.batch.ids.values[start : start + 5].tolist() == [6] + [NO_ID] * 4


def test_what_is_longer_than_the_room_does_not_fit_and_a_new_one_has_room_for_both():
    small, large = batch_of([[1]] * 2), batch_of([list(range(400)), []])
    fixed = FixedBatch(small)
    assert fixed.fits(small)
    assert not fixed.fits(large)
    grown = FixedBatch(large, before=fixed)
    assert grown.fits(large)
    assert grown.fits(small)
    assert FixedBatch(small, before=grown).sizes == grown.sizes


@pytest.mark.parametrize(
    "changed",
    [
        {"weight": torch.ones(2)},
        {"label": torch.ones(2, 1)},
        {"extra": {"user": torch.zeros(2)}},
    ],
)
def test_batches_of_other_parts_are_of_another_shape(changed):
    usual = batch_of([[1], [2]])
    assert shape_of(usual) == shape_of(batch_of([[1, 2, 3], []]))
    assert shape_of(usual) != shape_of(dataclasses.replace(usual, **changed))
    assert shape_of(usual) != shape_of(batch_of([[1], [2], [3]]))


def test_room_is_a_quarter_and_a_step_larger_at_most():
    for count in (1, 300, 5_000, 123_456, 10**7):
        assert count < room(count) <= count * 1.25 + 256
