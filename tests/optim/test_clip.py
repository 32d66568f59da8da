from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hybridrec.optim import SGD, clip_grad_norm_
from tests.optim.fake_group import DIM, backward, batches, collection

IDS, FACTORS = batches(1)[0]


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 1000.0])
def test_parameters_and_rows_are_clipped_as_one_ordinary_model(max_norm):
    emb, layer = collection("item", "user"), nn.Linear(DIM, 2)
    tables = {name: nn.Embedding.from_pretrained(emb.weight(name), freeze=False) for name in ("item", "user")}
    twin = nn.Linear(DIM, 2)
    twin.load_state_dict(layer.state_dict())
    rows, others = SGD(emb, lr=0.1), list(nn.ModuleDict(tables).parameters())
    for ids, factors in batches(3):
        found = emb({"item": ids, "user": ids})
        (layer(found["item"] * factors).sum() + (found["user"] * factors).sum()).backward()
        (twin(tables["item"](ids) * factors).sum() + (tables["user"](ids) * factors).sum()).backward()
    total = clip_grad_norm_(layer.parameters(), rows, max_norm)
    expected = torch.nn.utils.clip_grad_norm_([*twin.parameters(), *others], max_norm)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)
    rows.step()
    torch.optim.SGD(others, lr=0.1).step()
    for name in tables:
        torch.testing.assert_close(emb.weight(name), tables[name].weight.detach())


def test_the_factor_ends_with_the_step_and_with_zero_grad():
    emb = collection("item")
    rows = SGD(emb)
    for end in (rows.step, rows.zero_grad):
        backward(emb, "item", IDS, FACTORS)
        clip_grad_norm_([], rows, 1e-3)
        end()
        backward(emb, "item", IDS, FACTORS)
        rows.step()
        assert emb.group.made[-1]["item"].grad_scale == 1.0


def test_clipping_twice_multiplies():
    emb = collection("item")
    rows = SGD(emb)
    backward(emb, "item", torch.tensor([0]), torch.tensor([[3.0, 4.0, 0.0]]))
    assert float(clip_grad_norm_([], rows, 1.0)) == pytest.approx(5.0)
    assert float(clip_grad_norm_([], rows, 0.5)) == pytest.approx(1.0)
    rows.step()
    assert emb.group.made[0]["item"].grad_scale == pytest.approx(0.1)


def test_several_row_optimizers_share_the_norm():
    emb = collection("item", "user")
    both = [SGD(emb, tables=["item"]), SGD(emb, tables=["user"])]
    backward(emb, "item", torch.tensor([0]), torch.tensor([[3.0, 0.0, 0.0]]))
    backward(emb, "user", torch.tensor([0]), torch.tensor([[4.0, 0.0, 0.0]]))
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([12.0])
    assert float(clip_grad_norm_(parameter, both, 1.3)) == 13.0
    for optimizer in both:
        optimizer.step()
    scales = [next(iter(steps.values())).grad_scale for steps in emb.group.made]
    assert scales == pytest.approx([0.1, 0.1])
    assert float(parameter.grad) == pytest.approx(1.2)


def test_without_any_gradient_the_norm_is_zero():
    assert float(clip_grad_norm_([], SGD(collection("item")), 1.0)) == 0.0


def test_a_norm_that_is_not_finite_is_an_error_where_asked():
    emb = collection("item")
    rows = SGD(emb)
    backward(emb, "item", IDS, FACTORS * math.inf)
    with pytest.raises(RuntimeError, match=r"the norm of the gradients is (inf|nan), so they cannot be clipped to 1.0"):
        clip_grad_norm_([], rows, 1.0, error_if_nonfinite=True)
    assert not clip_grad_norm_([], rows, 1.0).isfinite()
