from __future__ import annotations

import torch

from hybridrec.ops.room import at_stride, join, mark, with_room

CPU = torch.device("cpu")


def vectors_of(width: int = 3, stride: int = 16) -> torch.Tensor:
    return mark(with_room(2, width, stride, CPU).normal_(), stride)


def test_vectors_with_room_are_a_tensor_of_their_own():
    vectors = with_room(2, 3, 16, CPU)
    assert vectors.stride() == (16, 1)
    assert not vectors._is_view()


def test_joined_vectors_and_numbers_have_their_gradients():
    vectors, numbers = vectors_of().requires_grad_(), torch.randn(2, 4, requires_grad=True)
    joined = join(vectors, numbers)
    assert joined is not None
    assert torch.equal(joined, torch.cat([vectors, numbers, torch.zeros(2, 9)], 1))
    factors = torch.randn(2, 16)
    (joined * factors).sum().backward()
    assert torch.equal(vectors.grad, factors[:, :3])
    assert torch.equal(numbers.grad, factors[:, 3:7])


def test_room_is_for_one_and_whoever_comes_again_finds_what_is_there():
    vectors, numbers = vectors_of(), torch.randn(2, 4)
    first = join(vectors, numbers)
    assert join(vectors, numbers) is first
    assert join(vectors, numbers.clone()) is None
    numbers.add_(1)
    assert join(vectors, numbers) is None, "they are others now"


def test_without_the_right_room_nothing_is_joined():
    numbers = torch.randn(2, 4)
    assert join(torch.randn(2, 3), numbers) is None
    assert join(vectors_of(stride=32), numbers) is None
    assert join(vectors_of(width=13), numbers) is None
    assert join(vectors_of(), numbers.double()) is None


def test_a_write_into_the_room_is_none_into_the_vectors():
    vectors = vectors_of().requires_grad_()
    square = vectors.square().sum()
    join(vectors, torch.randn(2, 4))
    square.backward()  # which would refuse vectors that have changed


def test_gradients_are_copied_only_where_their_rows_lie_otherwise():
    grad = torch.randn(4, 20)
    assert at_stride(grad, 20) is grad
    part = grad[:, :7]
    assert at_stride(part, 20) is part
    moved = at_stride(part, 16)
    assert moved.stride() == (16, 1)
    assert torch.equal(moved, part)
    spread = at_stride(torch.ones(()).expand(4, 7), 16)
    assert spread.stride() == (16, 1)
