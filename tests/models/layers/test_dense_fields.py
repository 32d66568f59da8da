from __future__ import annotations

import torch

from hybridrec.models.layers import DenseFields


def test_each_column_has_a_vector_that_its_number_scales():
    fields = DenseFields(2, 3)
    out = fields(torch.tensor([[2.0, 0.0], [-1.0, 1.0]]))
    assert torch.equal(out[0, 0], 2 * fields.vectors[0])
    assert not out[0, 1].any()
    assert torch.equal(out[1, 1], fields.vectors[1])


def test_no_columns_give_no_fields():
    assert DenseFields(0, 3)(torch.empty(4, 0)).shape == (4, 0, 3)
