"""Steps in one launch against those of torch; the kernel runs on a card, or through the interpreter."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from tests.gpu import DEVICE, SANITIZED, needs_gpu

pytest.importorskip("triton", reason="the kernel comes with triton")

from hybridrec.ops.dense_update import op
from hybridrec.ops.dense_update.op import DenseUpdate

pytestmark = needs_gpu

SHAPES = [(3, 5), (1,), (40, 33), (1024,), (2, 1030)]
KINDS: dict[str, Callable[[Any], Optimizer]] = {
    "adagrad": lambda p: Adagrad(p, lr=0.1),
    "adagrad with all": lambda p: Adagrad(p, 0.1, lr_decay=0.1, weight_decay=0.02, initial_accumulator_value=0.3),
    "adam": lambda p: Adam(p, lr=0.01),
    "adam with decay": lambda p: Adam(p, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
    "adamw": lambda p: AdamW(p, lr=0.02, weight_decay=0.1),
    "sgd": lambda p: SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}
BY_TORCH: dict[str, Callable[[Any], Optimizer]] = {
    "amsgrad": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "maximize": lambda p: SGD(p, lr=0.01, maximize=True),
    "lr on the device": lambda p: Adam(p, lr=torch.tensor(0.01)),
    "another rule": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def pair(make: Callable[[Any], Optimizer], shapes: Any = SHAPES) -> tuple[list[Tensor], Optimizer, Optimizer]:
    """Equal parameters for torch and for us; those of torch, and both optimizers."""
    draw = torch.Generator().manual_seed(0)
    plain = [torch.randn(shape, generator=draw).to(DEVICE).requires_grad_() for shape in shapes]
    ours = [each.detach().clone().requires_grad_() for each in plain]
    return plain, make(plain), make(ours)


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def give(number: int, *optimizers: Optimizer, skip: tuple[int, ...] = ()) -> None:
    """The gradients of a step."""
    for optimizer in optimizers:
        draw = torch.Generator().manual_seed(number)
        for at, each in enumerate(parameters(optimizer)):
            grad = torch.randn(each.shape, generator=draw).to(DEVICE)
            each.grad = None if at in skip else grad


def same(plain: Optimizer, ours: Optimizer) -> None:
    for one, other in zip(parameters(plain), parameters(ours), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=5e-7)
    one, other = plain.state_dict(), ours.state_dict()
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for number, state in one["state"].items():
        assert state.keys() == other["state"][number].keys()
        for name, value in state.items():
            torch.testing.assert_close(other["state"][number][name], value, rtol=1e-6, atol=5e-7)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The programs of each launch."""
    seen: list[int] = []
    launch = DenseUpdate._launch
    monkeypatch.setattr(DenseUpdate, "_launch", lambda self, *given: (seen.append(1), launch(self, *given))[1])
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch_and_so_is_the_state(kind, launches):
    _, plain, ours = pair(KINDS[kind])
    update = DenseUpdate(ours)
    for number in range(5):
        give(number, plain, ours)
        plain.step()
        update.step()
        same(plain, ours)
    assert len(launches) >= 4, "but for the first, which may make the state"


@pytest.mark.parametrize("kind", BY_TORCH)
def test_what_the_kernel_does_not_know_is_done_by_torch(kind, launches):
    _, plain, ours = pair(BY_TORCH[kind])
    update = DenseUpdate(ours)
    for number in range(3):
        give(number, plain, ours)
        plain.step()
        update.step()
    same(plain, ours)
    assert not launches


def test_parameters_without_gradient_rest_and_count_their_own_steps():
    _, plain, ours = pair(KINDS["adam"])
    update = DenseUpdate(ours)
    for number, skip in enumerate([(), (1, 2), (), (0,), (0, 1, 2, 3, 4), ()]):
        give(number, plain, ours, skip=skip)
        plain.step()
        update.step()
    same(plain, ours)


@pytest.mark.parametrize("kind", ["adam", "adagrad with all"])
def test_steps_that_others_count_meanwhile_are_seen(kind):
    _, plain, ours = pair(KINDS[kind])
    update = DenseUpdate(ours)
    for number in range(6):
        give(number, plain, ours)
        plain.step()
        ours.step() if number in (2, 4) else update.step()
        if number == 3:
            for each in (plain, ours):
                for state in each.state.values():
                    state["step"].fill_(50)
    same(plain, ours)


def test_steps_are_counted_where_they_lie_when_others_have_moved_them(launches):
    """As they are by whoever hands the state to another process; gradients stay, as those of a graph."""
    _, plain, ours = pair(KINDS["adam"])
    update = DenseUpdate(ours)
    give(0, plain, ours)
    for number in range(4):
        plain.step()
        update.step()
        for state in ours.state.values() if number == 1 else ():
            state["step"].share_memory_()
    same(plain, ours)
    assert len(launches) == 3


@pytest.mark.parametrize("which", ["gradient", "state"])
def test_tensors_that_take_the_place_of_others_are_seen_where_all_else_stays(which):
    _, plain, ours = pair(KINDS["adam"])
    update = DenseUpdate(ours)
    give(0, plain, ours)
    for number in range(4):
        for each in (plain, ours) if number == 2 else ():
            last = parameters(each)[-1]
            if which == "gradient":
                last.grad = torch.full_like(last, 0.5)
            else:
                each.state[last]["exp_avg"] = torch.full_like(last, 0.5)
        plain.step()
        update.step()
    same(plain, ours)


@pytest.mark.skipif(SANITIZED, reason="the sanitizer keeps the frames of launches, and all that they hold")
def test_gradients_of_a_step_are_not_kept_for_the_next():
    _, _, ours = pair(KINDS["adam"])
    update = DenseUpdate(ours)
    for number in range(3):
        give(number, ours)
        update.step()
    kept = [weakref.ref(each.grad) for each in parameters(ours)]
    ours.zero_grad()
    assert [each() for each in kept] == [None] * len(SHAPES)


def test_a_rule_that_comes_to_depend_on_the_step_finds_how_many_were_done():
    _, plain, ours = pair(KINDS["adagrad"])
    update = DenseUpdate(ours)
    for number in range(5):
        give(number, plain, ours)
        for group in plain.param_groups + ours.param_groups:
            group["lr_decay"] = 0.5 * (number > 2)
        plain.step()
        update.step()
    same(plain, ours)


def test_groups_have_their_own_numbers_and_schedules_change_them():
    def make(p):
        return AdamW(
            [{"params": p[:2], "lr": 0.1, "betas": (0.5, 0.9)}, {"params": p[2:], "weight_decay": 0.0}], lr=0.01
        )

    _, plain, ours = pair(make)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.7) for each in (plain, ours)]
    update = DenseUpdate(ours)
    for number in range(4):
        give(number, plain, ours)
        plain.step()
        update.step()
        for each in schedulers:
            each.step()
    same(plain, ours)


def test_a_state_that_is_loaded_goes_on():
    _, plain, ours = pair(KINDS["adam"])
    update = DenseUpdate(ours)
    for number in range(2):
        give(number, plain, ours)
        plain.step()
        update.step()
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    give(2, plain, ours)
    plain.step()
    update.step()
    same(plain, ours)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("make", [KINDS["adam"], BY_TORCH["another rule"]], ids=["ours", "torch"])
def test_a_loss_that_is_not_finite_spoils_no_weight(make, loss):
    _, before, ours = pair(make)
    update = DenseUpdate(ours)
    for number in range(2):
        give(number, before, ours)
        before.step()
        update.step()
    give(2, before, ours)
    if loss != 1.0:
        for each in parameters(ours):
            each.grad = torch.full_like(each, torch.nan)
    else:
        before.step()
    update.step(torch.tensor(loss, device=DEVICE))
    for one, other in zip(parameters(before), parameters(ours), strict=True):
        assert other.isfinite().all()
        if make is KINDS["adam"]:
            torch.testing.assert_close(other, one, rtol=1e-6, atol=5e-7)


def test_tensors_that_are_not_plain_are_left_to_torch(launches):
    transposed = torch.randn(4, 6, device=DEVICE).t().requires_grad_()
    double = torch.randn(5, device=DEVICE, dtype=torch.float64, requires_grad=True)
    for each in (transposed, double):
        update, before = DenseUpdate(Adagrad([each], lr=0.5)), each.detach().clone()
        each.grad = torch.ones_like(each)
        update.step()
        torch.testing.assert_close(each.detach(), before - 0.5)
    assert not launches


def test_hooks_of_a_step_are_called(launches):
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    optimizer, calls = SGD([weight], lr=1.0), []
    optimizer.register_step_post_hook(lambda *given: calls.append(1))
    weight.grad = torch.ones_like(weight)
    DenseUpdate(optimizer).step()
    assert calls
    assert not launches


def test_autograd_knows_that_weights_have_changed():
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    update, product = DenseUpdate(SGD([weight], lr=1.0)), weight.square().sum()
    weight.grad = torch.ones_like(weight)
    update.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_addresses_are_sent_only_where_they_are_new(monkeypatch):
    sent: list[int] = []
    send = op._sent
    monkeypatch.setattr(op, "_sent", lambda *given: (sent.append(1), send(*given))[1])
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    update = DenseUpdate(SGD([weight], lr=1.0))
    for _ in range(3):
        weight.grad = torch.ones_like(weight) if weight.grad is None else weight.grad
        update.step()
    assert len(sent) == 2, "the addresses, and the programs"
    assert weight.tolist() == [-2.0] * 3
