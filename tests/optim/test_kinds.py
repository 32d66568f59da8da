"""Each kind of row optimizer against the one of torch that it follows, or against the reference formula."""

from __future__ import annotations

import math

import pytest
import torch

from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from tests.optim.fake_group import backward, batches, collection, row_weights, torch_weights


@pytest.mark.parametrize(
    ("ours", "theirs", "sparse", "options"),
    [
        (SGD, torch.optim.SGD, True, {"lr": 0.1}),
        (SGD, torch.optim.SGD, False, {"lr": 0.1, "momentum": 0.9}),
        (SGD, torch.optim.SGD, False, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (Adagrad, torch.optim.Adagrad, True, {"lr": 0.1}),
        (
            Adagrad,
            torch.optim.Adagrad,
            True,
            {"lr": 0.1, "lr_decay": 0.5, "initial_accumulator_value": 0.2, "eps": 0.1},
        ),
        (Adagrad, torch.optim.Adagrad, False, {"lr": 0.1, "weight_decay": 0.1}),
        (Adam, torch.optim.SparseAdam, True, {"lr": 0.1}),
        (Adam, torch.optim.SparseAdam, True, {"lr": 0.1, "betas": (0.5, 0.8), "eps": 0.01}),
    ],
)
def test_several_steps_give_the_weights_of_torch(ours, theirs, sparse, options):
    data = batches(6, every_row=not sparse)
    emb = collection("item")
    expected = torch_weights(emb.weight("item"), data, sparse, lambda parameters: theirs(parameters, **options))
    torch.testing.assert_close(row_weights(emb, "item", data, ours(emb, **options)), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(SGD, torch.optim.SGD), (Adagrad, torch.optim.Adagrad), (Adam, torch.optim.SparseAdam)]
)
def test_the_default_values_are_those_of_torch(ours, theirs):
    group = ours(collection("item")).param_groups[0]
    oracle = theirs([torch.nn.Parameter(torch.zeros(1))]).defaults
    shared = [name for name in oracle if name in group]
    assert "lr" in shared
    assert {name: group[name] for name in shared} == {name: oracle[name] for name in shared}


def test_sgd_keeps_state_only_for_momentum():
    for options, kind, names in [({}, "sgd", ()), ({"momentum": 0.5}, "momentum", ("momentum_buffer",))]:
        emb = collection("item")
        optimizer = SGD(emb, **options)
        rule = emb.group.stores["item"].rule
        assert (rule.kind, rule.names) == (kind, names)
        optimizer.release()


def test_momentum_that_comes_too_late_is_refused_and_momentum_that_ends_is_not():
    emb = collection("item")
    optimizer = SGD(emb, lr=0.1)
    optimizer.param_groups[0]["momentum"] = 0.9
    backward(emb, "item", *batches(1)[0])
    with pytest.raises(ValueError, match="'item' was made for sgd, and its values now ask for momentum"):
        optimizer.step()
    optimizer.release()
    optimizer = SGD(emb, lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["momentum"] = 0.0
    optimizer.step()
    assert emb.group.made[-1]["item"].rule.kind == "momentum"
    assert emb.group.made[-1]["item"].momentum == 0.0


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(ValueError, match="table 'item': nesterov needs a momentum above 0"):
        SGD(collection("item"), nesterov=True)


def test_rowwise_adagrad_keeps_one_number_per_row():
    emb = collection("item")
    optimizer = RowWiseAdagrad(emb, lr=0.1, initial_accumulator_value=0.25, eps=0.0)
    before = emb.weight("item")
    backward(emb, "item", torch.tensor([2, 2]), torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
    optimizer.step()
    assert emb.group.stores["item"].export().state["sum"].tolist() == [0.25, 0.25, 3.25, 0.25, 0.25]
    moved = emb.weight("item") - before
    torch.testing.assert_close(moved[2], -0.1 * torch.tensor([1.0, 2.0, 2.0]) / math.sqrt(3.25))
    assert moved.abs().sum(1).nonzero().flatten().tolist() == [2]


def test_ftrl_passes_its_numbers_and_makes_exact_zeros():
    emb = collection("item")
    optimizer = FTRL(emb, lr=0.1, l1=50.0, l2=0.5, beta=1.0)
    row_weights(emb, "item", batches(1, every_row=True), optimizer)
    step = emb.group.made[0]["item"]
    assert (step.lr, step.l1, step.l2, step.beta) == (0.1, 50.0, 0.5, 1.0)
    assert [(c.name, c.fill) for c in step.rule.state] == [("z", 0.0), ("n", 0.1)]
    assert emb.weight("item").count_nonzero() == 0


def test_ftrl_refuses_a_learning_rate_of_zero_at_any_time():
    with pytest.raises(ValueError, match=r"table 'item': lr is 0\.0; FTRL divides by it"):
        FTRL(collection("item"), lr=0.0)
    emb = collection("item")
    optimizer = FTRL(emb)
    optimizer.param_groups[0]["lr"] = 0.0
    backward(emb, "item", *batches(1)[0])
    with pytest.raises(ValueError, match="keep it above 0, in schedules too"):
        optimizer.step()


def test_adam_and_adagrad_count_the_steps_of_each_table_by_itself():
    emb = collection("item", "user")
    optimizer = Adagrad(emb, lr=1.0, lr_decay=1.0)
    for names in (["item"], ["item", "user"], ["item"]):
        for name in names:
            backward(emb, name, *batches(1)[0])
        optimizer.step()
    found = [{name: (step.step, step.lr) for name, step in steps.items()} for steps in emb.group.made]
    assert found == [{"item": (1, 1.0)}, {"item": (2, 0.5), "user": (1, 1.0)}, {"item": (3, 1.0 / 3)}]
    assert (optimizer.steps_of("item"), optimizer.steps_of("user")) == (3, 1)
