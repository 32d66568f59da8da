"""The optimizers that a Trainer makes."""

from __future__ import annotations

import pytest
import torch

from hybridrec.ops.dense_update.rules import rule_of
from hybridrec.train.optimizers import dense_optimizer


@pytest.mark.parametrize(("device", "ours"), [("cpu", False), ("meta", True)])
def test_adam_is_fused_by_torch_on_the_cpu_and_elsewhere_one_that_our_own_launch_knows(device, ours):
    made = dense_optimizer(torch.nn.Linear(2, 1, device=device), None)
    assert isinstance(made, torch.optim.Adam)
    assert made.defaults["fused"] is not ours
    assert (rule_of(made, made.param_groups[0]) is not None) is ours
