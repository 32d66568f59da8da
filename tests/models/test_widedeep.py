from __future__ import annotations

import torch

from tests.models.clicks import dataset, losses, made

BATCHES = list(dataset())


def test_the_logit_is_the_linear_part_and_the_deep_part():
    model = made("widedeep", dataset().schema)
    losses(model, BATCHES, epochs=2)
    model.eval()
    batch, net = BATCHES[0], model.net
    numbers = net.norm(batch.dense)
    weights = model.wide(batch.ids)
    wide = sum(weights[name][:, 0] for name in model.wide.features) + (numbers @ net.wide.weight + net.wide.bias)[:, 0]
    deep = net.deep(torch.cat([model.embeddings(batch.ids).flat, numbers], 1))[:, 0]
    assert wide.abs().max() > 0.1
    assert torch.allclose(model(batch), wide + deep, atol=1e-5)


def test_crosses_are_wide_only():
    model = made("widedeep", dataset().schema)
    assert "item_x_size" in model.wide.features
    assert "item_x_size" not in model.embeddings.features
