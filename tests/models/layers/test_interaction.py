from __future__ import annotations

from itertools import combinations

import pytest
import torch

from hybridrec.models.layers import dot_interaction, fm_interaction


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


def test_vectors_of_several_tensors_are_as_those_of_one():
    vectors = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    parts = vectors[:, :2], vectors[:, 2:2], vectors[:, 2:]
    assert torch.allclose(fm_interaction(*parts), fm_interaction(vectors))
    assert torch.autograd.gradcheck(fm_interaction, [part.detach().requires_grad_() for part in parts])


@pytest.mark.parametrize("function", [dot_interaction, fm_interaction])
def test_gradients_are_right(function):
    assert torch.autograd.gradcheck(function, torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True))
