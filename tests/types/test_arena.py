from __future__ import annotations

import torch

from hybridrec.types.arena import compact, locate


def test_a_view_is_found_by_its_bytes_and_rebuilt_on_a_copy():
    arena = torch.arange(64, dtype=torch.uint8)
    tensor = arena[16:48].view(torch.int32).view(2, 4).t()
    view = locate(tensor, arena)
    assert view is not None
    assert view.offset == 16
    copy = view.on(arena.clone())
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.data_ptr() != tensor.data_ptr()


def test_an_arena_inside_a_larger_storage_counts_from_its_own_start():
    pool = torch.arange(64, dtype=torch.uint8)
    arena = pool[8:40]
    view = locate(pool[16:32].view(torch.int64), arena)
    assert view is not None
    assert view.offset == 8
    assert view.on(arena.clone()).tolist() == pool[16:32].view(torch.int64).tolist()
    assert view.on(arena).data_ptr() == pool[16:].data_ptr()
    assert compact(arena).untyped_storage().nbytes() == 32
    assert compact(pool) is pool


def test_tensors_elsewhere_are_not_in_the_arena():
    pool = torch.zeros(64, dtype=torch.uint8)
    arena = pool[8:40]
    assert locate(torch.zeros(4), arena) is None
    assert locate(pool[:8], arena) is None
    assert locate(pool[36:44], arena) is None
    assert locate(torch.empty(0), arena) is None
    assert locate(torch.zeros(4, device="meta"), arena) is None


def test_a_misaligned_place_is_left_alone():
    pool = torch.zeros(64, dtype=torch.uint8)
    assert locate(pool[8:16].view(torch.int64), pool[4:]) is None


def test_a_tensor_that_takes_a_gradient_keeps_it_and_is_left_alone():
    arena = torch.zeros(64, dtype=torch.uint8)
    assert locate(arena[:8].view(torch.float32).requires_grad_(), arena) is None


def test_tensors_without_elements_have_a_place_too():
    arena = torch.zeros(16, dtype=torch.uint8)
    view = locate(arena[8:8].view(torch.int64).view(0, 3), arena)
    assert view is not None
    assert (view.offset, view.on(arena.clone()).shape) == (8, (0, 3))


def test_views_of_the_same_memory_through_another_storage_are_found():
    memory = bytearray(range(32))
    arena = torch.frombuffer(memory, dtype=torch.uint8)
    view = locate(torch.frombuffer(memory, dtype=torch.int64, offset=16, count=2), arena)
    assert view is not None
    assert view.offset == 16
