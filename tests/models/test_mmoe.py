from __future__ import annotations

import pytest
import torch

from tests.models.clicks import dataset, losses, made

DS = dataset(labels=("click", "like"))


def test_each_label_mixes_the_experts_by_its_own_gate():
    model = made("mmoe", DS.schema)
    batches = list(DS)
    losses(model, batches)
    model.eval()
    batch, net = batches[0], model.net
    x = torch.cat([model.embeddings(batch.ids).flat, net.norm(batch.dense)], 1)
    for row in range(10):
        for label in range(2):
            shares = net.gates[label](x[row]).softmax(0)
            mixed = sum(share * expert(x[row]) for share, expert in zip(shares, net.experts, strict=True))
            assert torch.allclose(net.towers[label](mixed)[0], model(batch)[row, label], atol=1e-5)


def test_labels_come_in_the_order_of_the_batch():
    assert made("mmoe", DS.schema).labels == next(iter(DS)).label_names


def test_it_needs_an_expert():
    with pytest.raises(ValueError, match="experts is 0"):
        made("mmoe", DS.schema, experts=0)
