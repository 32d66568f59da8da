"""Loading by name: what is missing, left over or does not fit is an error, or is skipped and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hybridrec as hr
from hybridrec.embedding import LFU, EmbeddingCollection, IntegerLookup, MinCount, Normal, Table
from hybridrec.optim import SGD, Adagrad, Adam, RowOptimizer, RowWiseAdagrad
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, LoadReport, load

ITEM, USER = Table("item", 2, rows=5), Table("user", 2, capacity=9)


class Model(nn.Module):
    def __init__(self, *tables: Table, width: int = 3, seed: int = 0, **options: Any) -> None:
        super().__init__()
        self.emb = EmbeddingCollection(tables or (ITEM, USER), seed=seed, **options)
        self.top = nn.Linear(sum(self.emb.dims), width)

    def step(self, optimizers: dict[str, Any]) -> None:
        ids = {feature: torch.tensor([1, 3]) for feature in self.emb.features}
        self.top(self.emb(ids).flat).sum().backward()
        for optimizer in optimizers.values():
            optimizer.step()


def optimizers_of(model: nn.Module, rows: Any = Adagrad) -> dict[str, Any]:
    return {"dense": torch.optim.Adam(model.parameters()), "rows": rows(model, lr=0.1)}


def trained(*tables: Table, **options: Any) -> Contents:
    torch.manual_seed(0)
    model = Model(*tables, **options)
    optimizers = optimizers_of(model)
    model.step(optimizers)
    model.step(optimizers)
    return Contents(model, optimizers, {"step": 2})


def fresh(*tables: Table, rows: Any = Adagrad, **options: Any) -> Contents:
    torch.manual_seed(1)
    model = Model(*tables, **options)
    return Contents(model, optimizers_of(model, rows), {"mine": 1})


def saved(contents: Contents, folder: Path) -> Path:
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(contents, 2)
    found = checkpoints.latest()
    assert found is not None
    return found


def picture(contents: Contents) -> dict[str, Any]:
    """All that loading may change."""
    found = {name: part.clone() for name, part in contents.model.state_dict().items()}
    for name, each in contents.optimizers.items():
        state = each.state_dict()["state"]
        found |= {
            f"{name} {key} {part}": torch.as_tensor(v).clone() for key, s in state.items() for part, v in s.items()
        }
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def refused(path: Path, contents: Contents, *parts: str, **options: Any) -> str:
    """Strict loading names every part, and changes nothing."""
    before = picture(contents)
    with pytest.raises(CheckpointError) as caught:
        load(path, contents, **options)
    text = str(caught.value)
    assert [part for part in parts if part not in text] == [], text
    assert "Nothing was loaded" in text
    assert same(picture(contents), before)
    assert contents.state == {"mine": 1}
    return text


def test_a_whole_checkpoint_is_reported_as_loaded(tmp_path):
    source, target = trained(), fresh()
    report = load(saved(source, tmp_path), target)
    assert report.loaded == [
        "weight top.weight",
        "weight top.bias",
        "table emb.item",
        "table emb.user",
        "optimizer dense",
        "optimizer rows",
    ]
    assert report.complete
    assert same(picture(source), picture(target))
    assert target.state == {"step": 2}


def test_without_optimizers_those_of_the_checkpoint_are_passed_over(tmp_path):
    source, model = trained(), Model()
    report = load(saved(source, tmp_path), Contents(model))
    assert report.complete
    assert torch.equal(model.emb.lookup("user", [1, 3]), source.model.emb.lookup("user", [1, 3]))


def test_what_the_model_lacks_and_what_the_checkpoint_lacks_is_named(tmp_path):
    path = saved(trained(ITEM, Table("old", 2, rows=4)), tmp_path)
    target = fresh(ITEM, Table("new", 2, rows=4))
    refused(
        path,
        target,
        "table emb.old: the model does not have it",
        "table emb.new: the checkpoint does not have it",
        "optimizer rows, emb.new: it was not among the optimizer's tables",
        "optimizer rows, emb.old: the optimizer does not update this table now",
    )
    new = target.model.emb.lookup("new", [1])
    report = load(path, target, strict=False)
    assert "table emb.item" in report.loaded
    assert set(report.skipped) == {"table emb.old", "optimizer rows, emb.new", "optimizer rows, emb.old"}
    assert report.missing == ["table emb.new"]
    assert torch.equal(target.model.emb.lookup("new", [1]), new)


def test_rename_brings_tables_weights_and_their_optimizer_state_to_new_names(tmp_path):
    source = trained()
    path = saved(source, tmp_path)

    class Other(Model):
        def __init__(self) -> None:
            super().__init__(Table("product", 2, rows=5), USER)
            self.head = self.top
            del self.top

    model = Other()
    target = Contents(model, optimizers_of(model))
    report = load(path, target, rename={"emb.item": "emb.product", "top": "head"})
    assert report.complete
    assert torch.equal(model.head.weight, source.model.top.weight)
    assert torch.equal(model.emb["product"].weight, source.model.emb["item"].weight)
    rows, old = target.optimizers["rows"].state_dict(), source.optimizers["rows"].state_dict()
    assert torch.equal(rows["state"]["product"]["sum"], old["state"]["item"]["sum"])
    assert rows["state"]["product"]["step"] == 2
    moments = target.optimizers["dense"].state_dict()["state"][0]["exp_avg"]
    assert torch.equal(moments, source.optimizers["dense"].state_dict()["state"][0]["exp_avg"])


def test_a_rename_of_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"rename has 'emb.itme', which the checkpoint does not"):
        load(saved(trained(), tmp_path), fresh(), rename={"emb.itme": "emb.product"})


MISFITS = [
    (Table("item", 3, rows=5), "it was saved with dim 2, and has dim 3; declare it with dim=2"),
    (Table("item", 2, rows=6), "it was saved with 5 rows, and has 6; declare it with rows=5"),
    (Table("item", 2, capacity=9), "it was fixed, declared with rows=, and is dynamic, declared with capacity="),
    (Table("user", 2, capacity=1), "2 rows were saved, and its capacity is 1; give it capacity=2"),
    (Table("user", 2, rows=9), "it was dynamic, declared with capacity=, and is fixed, declared with rows="),
]


@pytest.mark.parametrize(("table", "why"), MISFITS)
def test_a_table_that_does_not_fit_is_named_with_the_remedy_and_skipped(table, why, tmp_path):
    path = saved(trained(), tmp_path)
    tables = [table if table.name == each.name else each for each in (ITEM, USER)]
    refused(path, fresh(*tables), f"table emb.{table.name}: {why}")
    target = fresh(*tables)
    before = target.model.emb[table.name].snapshot()
    report = load(path, target, strict=False)
    assert report.skipped[f"table emb.{table.name}"].startswith(why)
    assert torch.equal(target.model.emb[table.name].snapshot().data.rows, before.data.rows)
    assert f"table emb.{table.name}" not in report.loaded


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_another_dtype_is_refused_or_converted(dtype, tmp_path):
    source = trained()
    path = saved(source, tmp_path)
    tables = [Table("item", 2, rows=5, dtype=dtype), Table("user", 2, capacity=9, dtype=dtype)]
    kind = str(dtype).removeprefix("torch.")
    refused(
        path, fresh(*tables), f"part of table emb.item: dtype was float32 and is {kind}: its rows would be converted"
    )
    target = fresh(*tables)
    report = load(path, target, strict=False)
    assert {"table emb.item", "table emb.user"} <= set(report.loaded)
    assert torch.equal(target.model.emb["item"].weight, source.model.emb["item"].weight.to(dtype))
    assert torch.equal(target.model.emb.lookup("user", [1, 3]), source.model.emb.lookup("user", [1, 3]).to(dtype))


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (SGD, "sgd (no state)"),
        (Adam, "adam (exp_avg from 0, exp_avg_sq from 0)"),
        (RowWiseAdagrad, "rowwise_adagrad (sum from 0)"),
        (lambda m, lr: Adagrad(m, lr=lr, initial_accumulator_value=0.5), "adagrad (sum from 0.5)"),
    ],
)
def test_state_of_another_rule_is_refused_or_starts_anew(rows, named, tmp_path):
    source = trained()
    path = saved(source, tmp_path)
    why = f"its optimizer state was of adagrad (sum from 0) and is of {named}: it would start anew"
    refused(path, fresh(rows=rows), f"part of table emb.item: {why}", f"part of table emb.user: {why}")
    target = fresh(rows=rows)
    target.model.step(target.optimizers)  # its state is no longer fresh
    load(path, target, strict=False)
    for name in ("item", "user"):
        data, old = target.model.emb[name].export(), source.model.emb[name].export()
        assert torch.equal(data.rows, old.rows)
        fills = {column.name: column.fill for column in target.model.emb[name].rule.state}
        assert all((data.state[part] == fill).all() for part, fill in fills.items())
    target.optimizers["rows"].zero_grad()
    target.model.step(target.optimizers)


def test_counts_for_admission_of_another_size_are_refused_or_start_anew(tmp_path):
    counted = Table("user", 2, capacity=5000, admission=MinCount(2))
    path = saved(trained(ITEM, counted), tmp_path)
    why = "its counts for admission are of 32,768 bytes, not of 65,536 bytes: they would start anew"
    larger = Table("user", 2, capacity=9000, admission=MinCount(2))
    refused(path, fresh(ITEM, larger), f"part of table emb.user: {why}")
    assert "table emb.user" in load(path, fresh(ITEM, larger), strict=False).loaded
    report = load(path, fresh(ITEM, Table("user", 2, capacity=5000)))
    assert report.notes == {"table emb.user": "admission was MinCount(k=2) and is None"}
    (tmp_path / "plain").mkdir()
    path = saved(trained(), tmp_path / "plain")
    refused(path, fresh(ITEM, Table("user", 2, capacity=9, admission=MinCount(2))), "are missing, not of 16,384 bytes")


def test_another_seed_is_refused_where_numbers_are_still_drawn(tmp_path):
    path = saved(trained(), tmp_path)
    refused(path, fresh(seed=7), "part of table emb.user: its seed was 0 and is 7: it would draw other numbers")
    assert load(path, fresh(seed=7), strict=False).skipped.keys() == {"part of table emb.user"}
    (tmp_path / "fixed").mkdir()
    assert load(saved(trained(ITEM), tmp_path / "fixed"), fresh(ITEM, seed=7)).complete


def test_changed_policies_are_noted(tmp_path):
    path = saved(trained(), tmp_path)
    report = load(path, fresh(ITEM, Table("user", 2, capacity=500, eviction=LFU(), init=Normal(0.5))))
    assert report.notes == {
        "table emb.user": "init was Uniform(scale=0.05) and is Normal(std=0.5); eviction was LRU() and is LFU()"
    }


@pytest.mark.parametrize("fused", [True, False])
def test_fused_and_unfused_collections_load_each_others_rows(fused, tmp_path):
    torch.manual_seed(0)
    source, target = Model(ITEM, fused=fused, seed=3), Model(ITEM, fused=not fused)
    path = saved(Contents(source), tmp_path)
    assert load(path, Contents(target)).complete
    assert torch.equal(target.emb.lookup("item", range(5)), source.emb.lookup("item", range(5)))


def test_dense_weights_of_another_shape_or_type_are_named_and_skipped_with_their_moments(tmp_path):
    path = saved(trained(), tmp_path)
    text = refused(
        path,
        fresh(width=4),
        "weight top.weight: its shape was [3, 4] and is [4, 4]",
        "optimizer dense, top.weight: its shape was [3, 4] and is [4, 4], so it starts anew",
    )
    assert "pass strict=False" in text
    target = fresh(width=4)
    report = load(path, target, strict=False)
    assert "optimizer dense" in report.loaded
    assert target.optimizers["dense"].state_dict()["state"] == {}
    target.model.step(target.optimizers)
    half = fresh()
    half.model.top.bfloat16()
    refused(path, half, "weight top.bias: its dtype was torch.float32 and is torch.bfloat16")


def test_a_layer_more_keeps_the_state_of_the_others(tmp_path):
    source = trained()
    path = saved(source, tmp_path)
    model = Model()
    model.more = nn.Linear(2, 2)
    target = Contents(model, optimizers_of(model), {"mine": 1})
    refused(
        path, target, "weight more.bias: the checkpoint does not have it", "optimizer dense, more.weight: it was not"
    )
    report = load(path, target, strict=False)
    assert report.missing == ["weight more.weight", "weight more.bias"]
    dense = target.optimizers["dense"].state_dict()["state"]
    assert torch.equal(dense[0]["exp_avg_sq"], source.optimizers["dense"].state_dict()["state"][0]["exp_avg_sq"])
    assert set(dense) == {0, 1}


def test_other_optimizers_are_named(tmp_path):
    path = saved(trained(), tmp_path)
    model = Model()
    rows = Adagrad(model, lr=0.1)
    refused(
        path,
        Contents(model, {"dense": torch.optim.SGD(model.parameters()), "row": rows}, {"mine": 1}),
        "optimizer dense: it was a Adam, and is a SGD; make a Adam",
        "optimizer row: the checkpoint does not have it",
        "optimizer rows: none of this name is given",
    )
    groups = [{"params": [model.top.weight]}, {"params": [model.top.bias], "lr": 0.5}]
    two = Contents(model, {"dense": torch.optim.Adam(groups), "rows": rows}, {"mine": 1})
    refused(path, two, "optimizer dense: it had 1 parameter groups, and has 2; make as many")


def test_values_of_groups_and_steps_come_back(tmp_path):
    source = trained()
    source.optimizers["rows"].param_groups[0]["lr"] = 0.7
    source.optimizers["dense"].param_groups[0]["betas"] = (0.5, 0.6)
    target = fresh()
    load(saved(source, tmp_path), target)
    rows: RowOptimizer = target.optimizers["rows"]
    assert [group["lr"] for group in rows.param_groups] == [0.7, 0.1]
    assert [group["name"] for group in rows.param_groups] == ["item", "user"]
    assert rows.steps_of("user") == 2
    assert target.optimizers["dense"].param_groups[0]["betas"] == (0.5, 0.6)
    assert target.optimizers["dense"].param_groups[0]["params"][0] is target.model.top.weight


def test_a_vocabulary_that_does_not_fit_is_an_error(tmp_path):
    source, target = IntegerLookup(9), IntegerLookup(2)
    source(torch.arange(5))
    path = saved(Contents(source), tmp_path)
    with pytest.raises(CheckpointError, match="does not fit a module of the model, which is partly loaded now"):
        load(path, Contents(target))
    wide = IntegerLookup(100)
    load(path, Contents(wide))
    assert wide.vocabulary().tolist() == list(range(5))


class Extra(nn.Linear):
    """A module with state that is no tensor."""

    note: Any = None

    def get_extra_state(self) -> Any:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state


def test_extra_state_of_modules_and_lazy_parameters_come_back(tmp_path):
    source, target = nn.Sequential(Extra(2, 2), nn.LazyLinear(3)), nn.Sequential(Extra(2, 2), nn.LazyLinear(3))
    source[0].note = {"seen": (1, 2)}
    source(torch.zeros(1, 2))
    load(saved(Contents(source), tmp_path), Contents(target))
    assert target[0].note == {"seen": (1, 2)}
    assert torch.equal(target[1].weight, source[1].weight)


def test_hooks_of_modules_are_called_and_tables_are_left_as_they_were(tmp_path):
    """The state of a collection outside checkpoints has its rows, as before."""
    source, calls = trained(), []
    source.model.register_state_dict_post_hook(lambda module, state, prefix, meta: calls.append(set(state)))
    path = saved(source, tmp_path)
    assert calls == [{"top.weight", "top.bias"}]
    assert "emb.item.weight" in source.model.state_dict()
    target = fresh()
    load(path, target)
    target.model.load_state_dict(source.model.state_dict())
    assert target.model.emb.load_report.loaded == ("item", "user")


def test_gradients_that_wait_are_refused(tmp_path):
    contents = trained()
    contents.model.emb({"item": torch.tensor([1]), "user": torch.tensor([1])}).flat.sum().backward()
    with pytest.raises(ValueError, match=r"table 'item' has gradients that wait for a step, .*; save after"):
        Checkpoints(tmp_path).save(contents, 1)
    contents.optimizers["rows"].zero_grad()
    saved(contents, tmp_path)


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    contents = trained()
    with pytest.raises(ValueError, match="updates table 'item', which the model does not have"):
        Checkpoints(tmp_path).save(Contents(Model(), contents.optimizers), 1)


def test_two_tables_of_one_name_are_refused(tmp_path):
    model = nn.ModuleDict({"a": EmbeddingCollection([Table("b.c", 2, rows=2)])})
    model["a"].add_module("b", EmbeddingCollection([Table("c", 2, rows=2)]))
    with pytest.raises(ValueError, match=r"two tables of the model would be saved as 'a.b.c'; rename one of them"):
        Checkpoints(tmp_path).save(Contents(model), 1)


@pytest.mark.parametrize("name", ["a/b", "..", "ü %", "x" * 300, "con.arrow"])
def test_any_name_of_a_table_has_a_file(name, tmp_path):
    source, target = (EmbeddingCollection([Table(name, 2, rows=4)], seed=seed) for seed in (1, 2))
    path = saved(Contents(source), tmp_path)
    assert [file.parent for file in path.rglob("*.arrow")] == [path / "tables"]
    load(path, Contents(target))
    assert torch.equal(source[name].weight, target[name].weight)


def test_a_fused_model_goes_by_the_paths_of_its_modules(tmp_path):
    source = hr.fuse(nn.ModuleDict({"word": nn.Embedding(4, 2), "top": nn.Linear(2, 1)}))
    assert load(saved(Contents(source), tmp_path), Contents(source)).loaded[-1] == "table word"
    alone = hr.fuse(nn.Embedding(4, 2))
    (tmp_path / "alone").mkdir()
    assert load(saved(Contents(alone), tmp_path / "alone"), Contents(alone)).loaded == ["table embedding"]


def test_a_long_report_is_shortened():
    report = LoadReport([f"weight {n}" for n in range(30)], missing=["table a"], notes={"table b": "init was"})
    assert repr(report).splitlines()[0].endswith("weight 11 and 18 more")
    assert "table b: init was" in repr(report)
