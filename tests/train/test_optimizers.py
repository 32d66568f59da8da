"""The optimizers that a Trainer makes."""

from __future__ import annotations

import pytest
import torch

import hybridrec as hr
from hybridrec.ops.dense_update.rules import rule_of
from hybridrec.train.optimizers import dense_optimizer, row_optimizer


@pytest.mark.parametrize(("device", "ours"), [("cpu", False), ("meta", True)])
def test_adam_is_fused_by_torch_on_the_cpu_and_elsewhere_one_that_our_own_launch_knows(device, ours):
    made = dense_optimizer(torch.nn.Linear(2, 1, device=device), None)
    assert isinstance(made, torch.optim.Adam)
    assert made.defaults["fused"] is not ours
    assert (rule_of(made, made.param_groups[0]) is not None) is ours


def test_an_optimizer_of_another_model_is_refused():
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"SGD that has none of the model's parameters, .*of model\.parameters\(\)"):
        dense_optimizer(model, torch.optim.SGD(other.parameters(), lr=0.1))
    some = torch.optim.SGD([model.bias, *other.parameters()], lr=0.1)
    assert dense_optimizer(model, some) is some


def test_names_of_optimizers_are_refused_with_what_to_give():
    with pytest.raises(TypeError, match=r"optimizer is 'adam'; .*such as torch\.optim\.Adam"):
        dense_optimizer(torch.nn.Linear(2, 1), "adam")
    tables = hr.EmbeddingCollection([hr.Table("user", dim=2, rows=3)])
    with pytest.raises(TypeError, match=r"row_optimizer is 'adagrad'; .*such as hr\.optim\.Adagrad"):
        row_optimizer(tables, "adagrad")
