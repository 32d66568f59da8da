from __future__ import annotations

import torch

from hybridrec.models.layers import FirstOrder


def test_it_sums_weights_of_ids_numbers_and_the_bias_for_each_label():
    first = FirstOrder(columns=1, outputs=2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[10.0, 20.0]]))
        first.bias.copy_(torch.tensor([0.5, 0.25]))
    ids = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # two features with two weights each
    assert first(ids, torch.tensor([[3.0]])).tolist() == [[1 + 3 + 30 + 0.5, 2 + 4 + 60 + 0.25]]
