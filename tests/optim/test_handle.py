from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch

from hybridrec.optim import SGD
from hybridrec.optim.handle import RowHandle
from tests.optim.fake_group import FakeGroup, backward, batches, collection, fixed

IDS, FACTORS = batches(1)[0]


def test_the_gradient_is_there_only_while_rows_are_queued():
    emb = collection("item")
    handle = emb.group.handles["item"]
    assert handle.grad is None
    backward(emb, "item", IDS, FACTORS)
    assert handle.grad is not None
    assert handle.grad.tolist() == [1.0, 0.0]
    assert handle.grad is handle.grad
    handle.grad = None
    assert handle.grad is None
    assert emb.group.pending("item") == 0


def test_an_overflow_is_seen_also_when_it_comes_after_the_first_look():
    emb = collection("item")
    handle = emb.group.handles["item"]
    backward(emb, "item", IDS, FACTORS)
    first = handle.grad
    assert first is not None
    backward(emb, "item", IDS, FACTORS * math.inf)
    assert handle.grad is first
    assert first.tolist() == [1.0, math.inf]
    assert handle.scale == 1.0


def test_the_queue_is_scanned_only_when_it_has_grown():
    emb = collection("item")
    handle = emb.group.handles["item"]
    for count in (1, 2):
        backward(emb, "item", IDS, FACTORS)
        for _ in range(3):
            assert handle.grad is not None
        assert emb.group.scans == count


def test_a_step_scans_nothing_where_nobody_asks():
    emb = collection("item")
    optimizer = SGD(emb)
    backward(emb, "item", IDS, FACTORS)
    optimizer.step()
    assert emb.group.scans == 0


def test_the_scale_is_what_was_multiplied_since_the_rows_were_queued():
    emb = collection("item")
    handle = emb.group.handles["item"]
    backward(emb, "item", IDS, FACTORS)
    handle.multiply(0.5)
    torch._amp_foreach_non_finite_check_and_unscale_([handle.grad], torch.zeros(()), torch.tensor(0.25))
    assert handle.scale == 0.125
    handle.clear()
    assert handle.scale == 1.0


def test_whoever_takes_the_factor_for_a_gradient_is_refused():
    emb = collection("item")
    optimizer = SGD(emb)
    backward(emb, "item", IDS, FACTORS)
    handles = optimizer.param_groups[0]["params"]
    for wrong in (
        lambda: torch.nn.utils.clip_grad_norm_(handles, 1.0),
        lambda: torch.nn.utils.clip_grad_value_(handles, 1.0),
        lambda: handles[0].grad.mul_(2),
        lambda: handles[0].grad.add(1),
    ):
        with pytest.raises(
            TypeError, match=r"is a queue of rows and no tensor; to clip, use hybridrec.optim.clip_grad"
        ):
            wrong()
    assert handles[0].scale == 1.0
    with pytest.raises(TypeError, match="gradient of table 'item' is a queue of rows and cannot be set"):
        handles[0].grad = torch.ones(1)


def test_a_handle_is_an_empty_tensor_that_keeps_no_table_alive():
    group = FakeGroup([fixed("item")])
    handle, gone = group.handles["item"], weakref.ref(group)
    assert isinstance(handle, torch.Tensor)
    assert (handle.numel(), handle.is_leaf, repr(handle)) == (0, True, "RowHandle('item')")
    assert len({handle, RowHandle(group, "item")}) == 2
    del group
    gc.collect()
    assert gone() is None
    assert handle.grad is None
