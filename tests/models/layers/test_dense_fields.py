from __future__ import annotations

import torch

from hybridrec.models.layers import DenseFields, fm_interaction


def test_each_column_has_a_vector_that_its_number_scales():
    fields = DenseFields(2, 3)
    out = fields(torch.tensor([[2.0, 0.0], [-1.0, 1.0]]))
    assert torch.equal(out[0, 0], 2 * fields.vectors[0])
    assert not out[0, 1].any()
    assert torch.equal(out[1, 1], fields.vectors[1])


def test_no_columns_give_no_fields():
    assert DenseFields(0, 3)(torch.empty(4, 0)).shape == (4, 0, 3)


def test_the_sums_are_those_of_the_vectors():
    fields, numbers = DenseFields(4, 3).double(), torch.randn(5, 4, dtype=torch.float64)
    sums, vectors = fields.sums(numbers), fields(numbers)
    assert torch.allclose(sums.total, vectors.sum(1))
    assert torch.allclose(sums.squares, vectors.square().sum((1, 2)))
    assert torch.allclose(fm_interaction(sums), fm_interaction(vectors))
    assert torch.autograd.gradcheck(lambda x: fm_interaction(fields.sums(x)), numbers.requires_grad_())


def test_sums_keep_their_precision_under_autocast():
    fields, numbers = DenseFields(2, 3), torch.randn(5, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sums = fields.sums(numbers)
    assert torch.equal(sums.total, numbers @ fields.vectors)
