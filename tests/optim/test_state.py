from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from hybridrec.embedding.table import Table
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hybridrec.optim import state as state_module
from tests.optim.fake_group import DIM, FakeCollection, backward, batches, fixed

KINDS: list[Any] = [
    lambda m: SGD(m, lr=0.1),
    lambda m: SGD(m, lr=0.1, momentum=0.9),
    lambda m: Adagrad(m, lr=0.1, lr_decay=0.5),
    lambda m: RowWiseAdagrad(m, lr=0.1),
    lambda m: Adam(m, lr=0.1),
    lambda m: FTRL(m, lr=0.1),
]


def model() -> FakeCollection:
    return FakeCollection(fixed("item"), Table("user", DIM, capacity=100))


def train(emb: FakeCollection, optimizer: Any, count: int, start: int = 0) -> None:
    for ids, factors in batches(count + start)[start:]:
        backward(emb, "item", ids, factors)
        backward(emb, "user", ids * 7 - 9, factors)
        optimizer.step()


def copy_rows(source: FakeCollection, target: FakeCollection) -> None:
    """Rows only, in another order of arrival: state follows by id."""
    for name, store in source.group.stores.items():
        data = store.export()
        target.group.stores[name].load(data.ids.flip(0), data.rows.flip(0))


def through_file(saved: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("make", KINDS)
def test_training_goes_on_from_a_state_dict_as_if_it_had_not_stopped(make, monkeypatch):
    monkeypatch.setattr(state_module, "CHUNK", 2)
    straight, first, second = model(), model(), model()
    train(straight, make(straight), 6)
    optimizer = make(first)
    train(first, optimizer, 3)
    copy_rows(first, second)
    resumed = make(second)
    resumed.load_state_dict(through_file(optimizer.state_dict()))
    train(second, resumed, 3, start=3)
    for name in ("item", "user"):
        kept, expected = second.group.stores[name].export(), straight.group.stores[name].export()
        assert torch.equal(kept.ids, expected.ids)
        assert torch.equal(kept.rows, expected.rows)
        assert all(torch.equal(kept.state[column], expected.state[column]) for column in expected.state)
    assert resumed.steps_of("item") == 6


def test_a_state_dict_is_plain_tensors_and_numbers_by_table():
    emb = model()
    optimizer = Adagrad(emb, lr=0.1, overrides={"user": {"lr": 0.3}})
    train(emb, optimizer, 2)
    saved = optimizer.state_dict()
    assert set(saved["state"]["item"]) == {"step", "sum"}
    assert set(saved["state"]["user"]) == {"step", "sum", "ids"}
    assert saved["state"]["item"]["step"] == 2
    assert saved["state"]["item"]["sum"].shape == (5, DIM)
    assert saved["state"]["user"]["ids"].tolist() == emb.group.stores["user"].ids().tolist()
    assert [(g["name"], g["lr"], "params" in g) for g in saved["param_groups"]] == [
        ("item", 0.1, False),
        ("user", 0.3, False),
    ]


def test_loading_brings_the_values_of_the_groups_and_leaves_the_rows():
    source, target = model(), model()
    optimizer = Adagrad(source, lr=0.1, weight_bound=2.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[1]["lr"] = 0.7
    resumed = Adagrad(target, lr=0.5)
    before = target.weight("item")
    resumed.load_state_dict(optimizer.state_dict())
    values = [(g["lr"], g["initial_lr"], g["weight_bound"]) for g in resumed.param_groups]
    assert values == [(0.1, 0.1, 2.0), (0.7, 0.1, 2.0)]
    assert torch.equal(target.weight("item"), before)
    assert [len(g["params"]) for g in resumed.param_groups] == [1, 1]


def test_an_empty_table_has_empty_state():
    emb = model()
    saved = RowWiseAdagrad(emb).state_dict()["state"]["user"]
    assert (saved["ids"].shape, saved["sum"].shape) == ((0,), (0,))


def test_state_dict_hooks_of_torch_are_called():
    optimizer = SGD(model())
    called = []
    optimizer.register_state_dict_pre_hook(lambda o: called.append("save"))
    optimizer.register_state_dict_post_hook(lambda o, saved: saved | {"extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, saved: called.append(saved["extra"]))
    optimizer.register_load_state_dict_post_hook(lambda o: called.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == ["save", 1, "loaded"]


def rename(saved: dict[str, Any]) -> None:
    saved["state"]["shop"] = saved["state"].pop("item")


def rename_group(saved: dict[str, Any]) -> None:
    saved["param_groups"][0]["name"] = "shop"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("state"), 'has the keys "state" and "param_groups"'),
        (rename, "has table 'shop', which is not updated here; valid are 'item', 'user'"),
        (rename_group, "has table 'shop', which is not updated here; valid are 'item', 'user'"),
        (lambda s: s["state"].pop("user"), "lacks table 'user'; it has 'item'"),
        (lambda s: s["param_groups"].pop(), "lacks table 'user'; it has 'item'"),
        (lambda s: s["param_groups"][1].pop("lr_decay"), "table 'user' lack 'lr_decay': another kind of optimizer"),
        (lambda s: s["param_groups"][1].update(lr=-1.0), "table 'user': lr is -1.0"),
        (lambda s: s["state"]["user"].update(step=-1), "table 'user': step is -1"),
        (lambda s: s["state"]["user"].pop("sum"), "table 'user' has 'step', 'ids'; adagrad needs 'step', 'ids', 'sum'"),
        (lambda s: s["state"]["user"].update(sum=torch.zeros(2, 9)), r"sum is \[2, 9\]; it must be a tensor \[\d, 3\]"),
        (lambda s: s["state"]["user"].update(sum=3.0), r"sum is float; it must be a tensor"),
        (lambda s: s["state"]["user"].update(ids=torch.zeros(2)), "ids must be an int64 tensor"),
        (lambda s: s["state"]["user"]["ids"].add_(1000), "ids without a row, such as .*load the model before"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_anything_changes(spoil, message):
    emb = model()
    optimizer = Adagrad(emb, lr=0.1)
    train(emb, optimizer, 2)
    saved = optimizer.state_dict()
    saved["state"]["item"]["sum"] += 100
    saved["param_groups"][0]["lr"] = 9.0
    spoil(saved)
    before = {name: store.export() for name, store in emb.group.stores.items()}
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    for name, store in emb.group.stores.items():
        assert torch.equal(store.export().state["sum"], before[name].state["sum"])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.steps_of("user") == 2


def test_the_state_of_another_kind_is_refused():
    emb, other = model(), model()
    with pytest.raises(ValueError, match="another kind of optimizer"):
        SGD(emb).load_state_dict(Adam(other).state_dict())
    rows, full = model(), model()
    train(rows, saved := RowWiseAdagrad(rows), 1)
    with pytest.raises(ValueError, match=r"sum is \[5\]; it must be a tensor \[5, 3\]"):
        Adagrad(full).load_state_dict(saved.state_dict())
