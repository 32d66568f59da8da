from __future__ import annotations

import pytest
import torch

import hybridrec as hr
from recipes.plain_loop import falling, fit, predict
from tests.models.clicks import dataset, made


def test_the_loss_falls_and_the_rates_reach_zero():
    ds = dataset()
    model = made("deepfm", ds.schema)
    optimizers = torch.optim.Adam(model.parameters(), lr=0.01), hr.optim.Adagrad(model, lr=0.1)
    schedules = [falling(optimizer, 5 * len(ds)) for optimizer in optimizers]
    losses = fit(model, ds, optimizers, 5, schedules)
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.0, 0.0]


def test_a_label_without_weight_teaches_nothing():
    ds = dataset(labels=("click", "like"))
    models = [made("mmoe", ds.schema) for _ in range(2)]
    for model, weights in zip(models, ([1.0, 0.0], [1.0, 1.0]), strict=True):
        optimizers = torch.optim.SGD(model.parameters(), lr=0.1), hr.optim.SGD(model, lr=0.1)
        before = model.net.towers[1][-1].weight.clone()
        fit(model, ds, optimizers, 1, label_weights=weights)
        assert torch.equal(model.net.towers[1][-1].weight, before) == (weights[1] == 0)


def test_predictions_are_probabilities_in_the_order_of_the_rows():
    ds = dataset()
    model = made("deepfm", ds.schema)
    labels, scores = predict(model, ds)
    assert torch.equal(labels, torch.cat([batch.label for batch in ds]))
    assert scores.shape == labels.shape
    assert scores.min() > 0
    assert scores.max() < 1
    assert scores[:100].tolist() == pytest.approx(model(next(iter(ds))).sigmoid().tolist())
