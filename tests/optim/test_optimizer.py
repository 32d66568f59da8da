from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from hybridrec.optim import SGD, Adagrad, Adam
from tests.optim.fake_group import FakeCollection, backward, batches, collection, fixed, row_weights, torch_weights

IDS, FACTORS = batches(1)[0]


# -- steps -----------------------------------------------------------------------------------------------------


def test_gradients_of_several_backward_calls_are_one_update():
    data = batches(3)
    emb, once = collection("item"), collection("item")
    optimizer = Adagrad(emb, lr=0.1)
    for ids, factors in data:
        backward(emb, "item", ids, factors)
    optimizer.step()
    joined = torch.cat([ids for ids, _ in data]), torch.cat([factors for _, factors in data])
    assert torch.equal(emb.weight("item"), row_weights(once, "item", [joined], Adagrad(once, lr=0.1)))
    assert optimizer.steps_of("item") == 1


def test_all_tables_of_a_group_are_updated_by_one_call():
    emb = collection("item", "user", "shop")
    optimizer = SGD(emb, lr=0.1)
    backward(emb, "item", IDS, FACTORS)
    backward(emb, "shop", IDS, FACTORS)
    optimizer.step()
    assert [set(steps) for steps in emb.group.made] == [{"item", "shop"}]


def test_a_step_without_gradients_changes_and_counts_nothing():
    emb = collection("item")
    optimizer = Adam(emb)
    before = emb.weight("item")
    optimizer.step()
    assert emb.group.made == []
    assert optimizer.steps_of("item") == 0
    assert torch.equal(emb.weight("item"), before)


def test_zero_grad_discards_what_is_queued():
    emb = collection("item")
    optimizer = SGD(emb, lr=0.1)
    before = emb.weight("item")
    for set_to_none in (True, False):
        backward(emb, "item", IDS, FACTORS)
        optimizer.zero_grad(set_to_none)
        optimizer.step()
    assert torch.equal(emb.weight("item"), before)


def test_a_closure_is_called_with_gradients_on():
    emb = collection("item")
    optimizer = SGD(emb, lr=0.1)

    def closure() -> float:
        backward(emb, "item", IDS, FACTORS)
        return 7.0

    with torch.no_grad():
        assert optimizer.step(closure) == 7.0
    assert len(emb.group.made) == 1


def test_a_step_carries_the_values_of_its_table():
    emb = collection("item", "user")
    options = {"weight_bound": 0.5, "clip_row_norm": 2.0, "nan": "raise"}
    optimizer = SGD(emb, lr=0.1, **options, overrides={"user": {"lr": 0.2, "weight_bound": None, "nan": "skip"}})
    for name in ("item", "user"):
        backward(emb, name, IDS, FACTORS)
    optimizer.step()
    item, user = emb.group.made[0]["item"], emb.group.made[0]["user"]
    assert (item.lr, item.weight_bound, item.clip_row_norm, item.nan, item.grad_scale) == (0.1, 0.5, 2.0, "raise", 1.0)
    assert (user.lr, user.weight_bound, user.clip_row_norm, user.nan) == (0.2, math.inf, 2.0, "skip")


def test_rows_with_bad_gradients_are_skipped_or_raise_as_chosen():
    bad = FACTORS.clone()
    bad[0, 0] = math.nan
    emb = collection("item")
    optimizer = SGD(emb, lr=0.1)
    before = emb.weight("item")
    backward(emb, "item", IDS, bad)
    optimizer.step()
    assert torch.equal(emb.weight("item")[IDS[0]], before[IDS[0]])
    assert not torch.equal(emb.weight("item"), before)

    emb = collection("item")
    optimizer = SGD(emb, lr=0.1, nan="raise")
    backward(emb, "item", IDS, bad)
    with pytest.raises(FloatingPointError, match="table 'item'"):
        optimizer.step()
    assert torch.equal(emb.weight("item"), before)
    assert (optimizer.steps_of("item"), emb.group.pending("item")) == (0, 1)


def test_step_hooks_of_torch_are_called():
    optimizer = SGD(collection("item"))
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["before", "after"]


# -- tables ----------------------------------------------------------------------------------------------------


def test_each_table_is_a_group_of_its_name():
    model = nn.Sequential(collection("item", "user"), nn.Linear(3, 1), collection("shop"))
    optimizer = Adagrad(model, lr=0.1, overrides={"user": {"lr": 0.5, "eps": 1e-3}})
    assert optimizer.tables == ("item", "user", "shop")
    assert [(g["name"], g["lr"], g["eps"]) for g in optimizer.param_groups] == [
        ("item", 0.1, 1e-10),
        ("user", 0.5, 1e-3),
        ("shop", 0.1, 1e-10),
    ]


def test_tables_of_equal_names_are_told_apart_by_their_modules():
    model = nn.ModuleDict({"left": collection("item", "user"), "right": collection("item")})
    optimizer = SGD(model, lr=0.1, overrides={"right.item": {"lr": 0.2}})
    assert optimizer.tables == ("left.item", "user", "right.item")
    before = model["right"].weight("item")
    backward(model["right"], "item", IDS, FACTORS)
    optimizer.step()
    assert not torch.equal(model["right"].weight("item"), before)
    assert (model["left"].group.made, len(model["right"].group.made)) == ([], 1)
    assert model["right"].group.made[0]["item"].lr == 0.2


def test_several_models_may_be_given_and_one_that_is_in_both_counts_once():
    shared, other = collection("item"), collection("item")
    optimizer = SGD([shared, nn.Sequential(shared, other)])
    assert optimizer.tables == ("0.item", "1.1.item")


def test_only_the_tables_asked_for_are_updated():
    emb = collection("item", "user")
    optimizer, rest = SGD(emb, lr=0.1, tables=["user"]), Adam(emb, tables=["item"])
    for name in ("item", "user"):
        backward(emb, name, IDS, FACTORS)
    optimizer.step()
    assert (emb.group.pending("item"), emb.group.pending("user")) == (1, 0)
    rest.zero_grad()
    assert emb.group.pending("item") == 0


def test_a_frozen_table_has_no_group():
    emb = FakeCollection(fixed("item"), fixed("user", trainable=False))
    assert SGD(emb).tables == ("item",)
    with pytest.raises(ValueError, match="no table to train was found in FakeCollection"):
        SGD(FakeCollection(fixed("user", trainable=False)))


def test_a_table_belongs_to_one_optimizer_until_it_is_released():
    emb = collection("item", "user")
    first = Adagrad(emb, tables=["user"])
    with pytest.raises(ValueError, match="table 'user' belongs to another Adagrad; call its release") as caught:
        SGD(emb)
    second = SGD(emb, tables=["item"])  # what the failed one had taken is free again, though the error still holds it
    assert caught.value.__traceback__ is not None
    first.release()
    third = Adam(emb, tables=["user"])
    assert (second.tables, third.tables) == (("item",), ("user",))
    with pytest.raises(RuntimeError, match="this Adagrad has released its tables; make a new one"):
        first.step()


def test_an_optimizer_that_is_gone_holds_no_table():
    emb = collection("item")
    SGD(emb)
    assert Adam(emb).tables == ("item",)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"momentun": 0.9},
            TypeError,
            "SGD has no option 'momentun'; valid are lr, momentum, nesterov, weight_decay, tables",
        ),
        (
            {"tables": ["itm"]},
            ValueError,
            "tables names 'itm', which the model does not have; valid are 'item', 'user'",
        ),
        ({"tables": "item"}, TypeError, r"must be a list of names: tables=\['item'\]"),
        ({"tables": []}, ValueError, "tables is empty"),
        (
            {"overrides": {"shop": {"lr": 1.0}}},
            ValueError,
            "table 'shop', which is not updated here; valid are 'item', 'user'",
        ),
        (
            {"tables": ["item"], "overrides": {"user": {}}},
            ValueError,
            "'user', which is not updated here; valid are 'item'$",
        ),
        (
            {"overrides": {"user": {"eps": 1.0}}},
            ValueError,
            "overrides of table 'user' set 'eps'; valid are lr, momentum",
        ),
        (
            {"overrides": {"user": {"lr": -1}}},
            ValueError,
            "table 'user': lr is -1; it must be a finite number of at least 0",
        ),
        ({"lr": math.nan}, ValueError, "table 'item': lr is nan"),
        ({"lr": "0.1"}, ValueError, "table 'item': lr is '0.1'"),
        ({"momentum": -0.1}, ValueError, "momentum is -0.1"),
        ({"nesterov": 1}, ValueError, "nesterov is 1; it must be True or False"),
        ({"weight_bound": 0}, ValueError, "weight_bound is 0; it must be a number above 0, or None"),
        ({"clip_row_norm": -1.0}, ValueError, "clip_row_norm is -1.0"),
        ({"nan": "ignore"}, ValueError, "nan is 'ignore'; it must be 'skip' or 'raise'"),
    ],
)
def test_options_that_make_no_sense_are_refused_and_take_no_table(options, error, message):
    emb = collection("item", "user")
    with pytest.raises(error, match=message):
        SGD(emb, **options)
    assert SGD(emb).tables == ("item", "user")


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), (-0.1, 0.9), 0.9])
def test_betas_out_of_range_are_refused(betas):
    with pytest.raises(ValueError, match=r"betas is .*; it must be two numbers, each at least 0 and below 1"):
        Adam(collection("item"), betas=betas)


def test_what_has_no_tables_is_refused():
    with pytest.raises(ValueError, match="no table to train was found in Linear"):
        SGD(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="the model itself, not its parameters: among the modules is Parameter"):
        SGD(nn.Linear(2, 2).parameters())
    with pytest.raises(TypeError, match="a model or a list of models, not int"):
        SGD(7)  # pyright: ignore[reportArgumentType]  (what is tested)
    with pytest.raises(ValueError, match="no table to train was found in list"):
        SGD([])


def test_groups_cannot_be_added_and_the_optimizer_not_copied():
    optimizer = SGD(collection("item"))
    with pytest.raises(TypeError, match="SGD has a group for each table of its model, and no others can be added"):
        optimizer.add_param_group({"params": [torch.zeros(1)]})
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"SGD cannot be copied or pickled.*use state_dict\(\)"):
            attempt(optimizer)
    assert len(optimizer.param_groups) == 1


def test_tables_that_no_path_tells_apart_are_refused():
    model = nn.ModuleDict({"left": collection("item"), "right": collection("item", "left.item")})
    with pytest.raises(ValueError, match=r"two tables would be listed as 'left\.item'; rename one of them"):
        SGD(model)


# -- schedulers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: epoch / 4),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=8),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
        ),
    ],
    ids=["StepLR", "LambdaLR", "OneCycleLR", "SequentialLR"],
)
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [(SGD, torch.optim.SGD, {"momentum": 0.9}), (Adam, torch.optim.SparseAdam, {})],
    ids=["SGD", "Adam"],
)
def test_schedulers_of_torch_drive_the_learning_rate(schedule, ours, theirs, options):
    data = batches(6, every_row=True)
    sparse = theirs is torch.optim.SparseAdam

    class Scheduled:
        """An optimizer whose scheduler steps with it."""

        def __init__(self, optimizer):
            self.optimizer, self.scheduler = optimizer, schedule(optimizer)
            self.zero_grad = optimizer.zero_grad

        def step(self):
            self.optimizer.step()
            self.scheduler.step()

    emb = collection("item")
    expected = torch_weights(emb.weight("item"), data, sparse, lambda p: Scheduled(theirs(p, lr=0.1, **options)))
    torch.testing.assert_close(row_weights(emb, "item", data, Scheduled(ours(emb, lr=0.1, **options))), expected)


def test_a_schedule_moves_each_table_from_its_own_rate():
    emb = collection("item", "user")
    optimizer = Adagrad(emb, lr=0.1, overrides={"user": {"lr": 1.0}})
    scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.5]
