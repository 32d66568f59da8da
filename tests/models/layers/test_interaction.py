from __future__ import annotations

from itertools import combinations

import pytest
import torch

from hybridrec.models.layers import dot_interaction, fm_interaction, pairs_beside
from hybridrec.models.layers.interaction import _Pairs


@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 2, 1), (7, 1, 3), (0, 3, 2)])
def test_dots_are_those_of_every_pair_in_order(shape):
    vectors = torch.randn(shape)
    pairs = list(combinations(range(shape[1]), 2))
    naive = [[float(row[i] @ row[j]) for i, j in pairs] for row in vectors]
    assert torch.allclose(dot_interaction(vectors), torch.tensor(naive).view(shape[0], len(pairs)), atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 2, 1), (7, 1, 3), (0, 3, 2)])
def test_the_factorisation_machine_sums_the_dots_of_all_pairs(shape):
    vectors = torch.randn(shape)
    naive = [sum((float(row[i] @ row[j]) for i, j in combinations(range(shape[1]), 2)), 0.0) for row in vectors]
    assert torch.allclose(fm_interaction(vectors), torch.tensor(naive), atol=1e-5)


@pytest.mark.parametrize("function", [dot_interaction, fm_interaction])
def test_vectors_of_several_tensors_are_as_those_of_one(function):
    vectors = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    parts = vectors[:, :2], vectors[:, 2:2], vectors[:, 2:]
    assert torch.allclose(function(*parts), function(vectors))
    assert torch.autograd.gradcheck(function, [part.detach().requires_grad_() for part in parts])


def test_room_behind_the_vectors_changes_no_dot_and_takes_no_gradient():
    vectors = torch.randn(4, 5, 3, dtype=torch.float64)
    roomy = torch.cat([vectors, torch.zeros(4, 3, 3, dtype=torch.float64)], 1).requires_grad_()
    found = _Pairs.apply(roomy, 5, 0)
    assert torch.equal(found, dot_interaction(vectors))
    found.sum().backward()
    assert roomy.grad is not None
    assert not roomy.grad[:, 5:].any()
    assert torch.autograd.gradcheck(lambda v: _Pairs.apply(v, 5, 0), roomy)


@pytest.mark.parametrize("fields", [2, 3, 4, 5, 8])
def test_zeros_behind_the_dots_of_torch_are_as_many_as_make_a_multiple_of_eight(fields):
    below, vectors = (torch.randn(6, 3 * n, dtype=torch.float64) for n in (1, fields))
    first, dots = pairs_beside(below, vectors, 3)
    plain = dot_interaction(below[:, None], vectors.unflatten(1, (-1, 3)))
    assert first is below
    assert dots.shape[1] == plain.shape[1] + -plain.shape[1] % 8
    assert torch.allclose(dots[:, : plain.shape[1]], plain)
    assert not dots[:, plain.shape[1] :].any()


@pytest.mark.parametrize("below", [True, False])
def test_native_dots_are_those_of_torch_and_lie_beside_the_vector_from_below(below):
    first, vectors = torch.randn(6, 3) if below else None, torch.randn(6, 15)
    (joined,) = pairs_beside(first, vectors, 3)
    exact = pairs_beside(None if first is None else first.double(), vectors.double(), 3)
    together = torch.cat(exact, 1).float()
    width = 3 + 15 if below else 10
    assert torch.allclose(joined[:, :width], together[:, :width], atol=1e-5)
    assert not joined[:, width:].any()


@pytest.mark.parametrize("fields", [2, 4, 5])
def test_gradients_through_zeros_behind_the_dots_are_right(fields):
    below, vectors = (torch.randn(3, 2 * n, dtype=torch.float64, requires_grad=True) for n in (1, fields))
    assert torch.autograd.gradcheck(lambda *parts: pairs_beside(*parts, 2), (below, vectors))


def test_dots_in_bfloat16_give_gradients_of_the_vectors_own_type():
    vectors = torch.randn(6, 4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = dot_interaction(vectors)
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), dot_interaction(vectors.detach()), atol=0.1)
    assert vectors.grad is not None
    assert vectors.grad.dtype == torch.float32


@pytest.mark.parametrize("function", [dot_interaction, fm_interaction])
def test_gradients_are_right(function):
    assert torch.autograd.gradcheck(function, torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True))
