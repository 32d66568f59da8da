"""Row optimizers under torch.amp.GradScaler, beside an optimizer of torch on an ordinary table."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hybridrec.optim import SGD, clip_grad_norm_
from tests.optim.fake_group import FakeCollection, backward, batches, collection

GradScaler = torch.amp.GradScaler  # pyright: ignore[reportPrivateImportUsage]  (its documented home)


def twin(emb: FakeCollection) -> tuple[nn.Embedding, torch.optim.Optimizer]:
    table = nn.Embedding.from_pretrained(emb.weight("item").clone(), freeze=False)
    return table, torch.optim.SGD(table.parameters(), lr=0.1)


@pytest.mark.parametrize("unscale", [False, True])
def test_steps_and_skips_are_those_of_an_optimizer_of_torch(unscale):
    emb = collection("item")
    table, dense = twin(emb)
    rows = SGD(emb, lr=0.1)
    scalers = [GradScaler("cpu", init_scale=1024.0, growth_interval=1) for _ in range(2)]
    for turn, (ids, factors) in enumerate(batches(8, every_row=True)):
        factors = factors * (math.inf if turn in (2, 5) else 1.0)
        dense.zero_grad()
        scalers[0].scale((table(ids) * factors).sum()).backward()
        backward(emb, "item", ids, factors, scale=scalers[1].scale(torch.ones(())))
        for scaler, optimizer in zip(scalers, (dense, rows), strict=True):
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert emb.group.pending("item") == 0
        assert scalers[0].get_scale() == scalers[1].get_scale()
    torch.testing.assert_close(emb.weight("item"), table.weight.detach())
    assert rows.steps_of("item") == 6
    assert scalers[0].get_scale() == 1024.0 * 2**6 / 2**2


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_overflow_in_one_table_skips_all_and_discards_their_gradients(bad):
    emb = collection("item", "user")
    rows = SGD(emb, lr=0.1)
    scaler = GradScaler("cpu")
    ids, factors = batches(1)[0]
    before = emb.weight("user")
    scale = scaler.scale(torch.ones(()))
    backward(emb, "item", ids, factors * bad, scale=scale)
    backward(emb, "user", ids, factors, scale=scale)
    scaler.step(rows)
    scaler.update()
    assert torch.equal(emb.weight("user"), before)
    assert (emb.group.pending("item"), emb.group.pending("user"), emb.group.made) == (0, 0, [])
    assert scaler.get_scale() == 2.0**15


def test_the_factor_of_one_step_is_gone_at_the_next():
    emb = collection("item")
    rows = SGD(emb)
    scaler = GradScaler("cpu", init_scale=8.0)
    ids, factors = batches(1)[0]
    backward(emb, "item", ids, factors, scale=scaler.scale(torch.ones(())))
    scaler.unscale_(rows)
    scaler.step(rows)
    backward(emb, "item", ids, factors)
    rows.step()
    assert [steps["item"].grad_scale for steps in emb.group.made] == [0.125, 1.0]


def test_a_step_without_row_gradients_passes_a_scaler_that_saw_others():
    emb = collection("item")
    layer = nn.Linear(2, 1)
    rows, dense = SGD(emb), torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = GradScaler("cpu")
    scaler.scale(layer(torch.ones(1, 2)).sum()).backward()
    scaler.step(dense)
    scaler.step(rows)
    scaler.update()
    assert emb.group.made == []


def test_clipping_after_unscaling_sees_the_true_norm():
    emb = collection("item")
    rows = SGD(emb)
    scaler = GradScaler("cpu", init_scale=16.0)
    ids = torch.tensor([1])
    backward(emb, "item", ids, torch.tensor([[3.0, 4.0, 0.0]]), scale=scaler.scale(torch.ones(())))
    scaler.unscale_(rows)
    assert float(clip_grad_norm_([], rows, max_norm=0.5)) == 5.0
    scaler.step(rows)
    assert emb.group.made[0]["item"].grad_scale == pytest.approx(0.1 / 16)


def test_a_disabled_scaler_changes_nothing():
    emb = collection("item")
    rows = SGD(emb)
    scaler = GradScaler("cpu", enabled=False)
    backward(emb, "item", *batches(1)[0], scale=scaler.scale(torch.ones(())))
    scaler.unscale_(rows)
    scaler.step(rows)
    scaler.update()
    assert emb.group.made[0]["item"].grad_scale == 1.0
