"""Steps and dropped gradients without what torch tells profilers: nobody who hangs on to an optimizer is left out."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.profiler import ProfilerActivity, profile

import hybridrec as hr
from hybridrec.optim.bare import bare_step, drop_gradients
from tests.train.clicks import dataset, model_of


def rows_with_gradients() -> tuple[hr.optim.RowOptimizer, torch.nn.Module]:
    ds = dataset()
    model = model_of(ds)
    rows = hr.optim.SGD(model, lr=0.5)
    model(next(iter(ds))).sum().backward()
    return rows, model


def test_a_step_is_that_of_the_optimizer_and_profilers_see_none():
    (bare, one), (usual, other) = rows_with_gradients(), rows_with_gradients()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        bare_step(bare)
        drop_gradients(torch.optim.SGD(one.parameters(), lr=0.1))
    usual.step()
    ids = torch.arange(50)
    assert torch.equal(one.embeddings.lookup("user", ids), other.embeddings.lookup("user", ids))  # pyright: ignore
    assert bare.steps_of("user") == 1
    assert not [event.name for event in seen.events() or () if event.name.startswith("Optimizer.")]


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_are_called(when):
    rows, _ = rows_with_gradients()
    calls = []
    getattr(rows, f"register_step_{when}_hook")(lambda *given: calls.append(rows.steps_of("user")))
    bare_step(rows)
    assert calls == [int(when == "post")]
    assert rows.steps_of("user") == 1


def test_a_scheduler_sees_that_a_step_was_made(recwarn):
    rows, _ = rows_with_gradients()
    scheduler = LambdaLR(rows, lambda step: 0.5**step)
    bare_step(rows)
    scheduler.step()
    assert not recwarn.list
    assert {group["lr"] for group in rows.param_groups} == {0.25}
