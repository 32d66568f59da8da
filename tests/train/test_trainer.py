"""The Trainer as a user meets it: fit, evaluate, the run directory, and clear errors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader

import hybridrec as hr
from hybridrec.models import MMoE
from hybridrec.train import Callback, Trainer, TrainOptions
from hybridrec.train import trainer as trainer_module
from hybridrec.train.checkpoint import Checkpoints
from tests.train.clicks import QUIET, assert_same, clicks, dataset, model_of, numbers_of, trainer_of, weights


def test_a_fit_learns_and_its_metrics_are_those_of_sklearn():
    train, valid = dataset(4000).split(0.75)
    trainer = trainer_of(train)
    history = trainer.fit(train.shuffle(seed=0), valid, epochs=4)
    scores = trainer.predict(valid)
    labels = np.concatenate([batch.label.numpy() for batch in valid])
    found = trainer.evaluate(valid)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-3)
    assert found["auc"] > 0.8
    assert found == {name: history.valid[-1][name] for name in found}
    assert [record["step"] for record in history.valid] == [30, 60, 90, 120]
    assert (trainer.step, trainer.epoch) == (120, 4)
    assert history.values("loss", "train")[-1] < history.values("loss", "train")[0]


def test_epochs_and_steps_end_a_fit_whichever_comes_first():
    ds = dataset(1000)
    for options, steps in (({}, 10), ({"steps": 3}, 3), ({"steps": 25}, 25), ({"steps": 99, "epochs": 2}, 20)):
        trainer = trainer_of(ds)
        trainer.fit(ds, **options)
        assert trainer.step == steps
    trainer.fit(ds, steps=5)
    trainer.fit(ds, steps=5)
    assert (trainer.step, trainer.state.epoch) == (30, 3), "another fit goes on, with a new epoch"
    with pytest.raises(ValueError, match="epochs is 0; it must be a whole number from 1 on"):
        trainer.fit(ds, epochs=0)


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    ds = dataset(600).shuffle(seed=1)

    def run(seed: int):
        trainer = trainer_of(ds, model_of(ds, dropout=0.5), options=replace(QUIET, seed=seed, deterministic=True))
        trainer.fit(ds, epochs=2)
        return trainer

    one, same, other = run(1), run(1), run(2)
    assert_same(weights(one.model), weights(same.model))
    assert numbers_of(one) == numbers_of(same)
    assert numbers_of(one) != numbers_of(other)
    assert not torch.are_deterministic_algorithms_enabled()


def test_validation_changes_nothing_in_training(tmp_path):
    ds, valid = dataset(600).shuffle(seed=1), dataset(200).shuffle(seed=2)
    alone, watched = (trainer_of(ds, model_of(ds, dropout=0.5)) for _ in range(2))
    alone.fit(ds, epochs=2)
    watched.options = replace(QUIET, validate_every=2)
    watched.fit(ds, valid, epochs=2)
    assert len(watched.history.valid) == 6
    assert_same(weights(alone.model), weights(watched.model))


def test_the_data_of_training_may_be_that_of_validation():
    ds = dataset(500)
    trainer = trainer_of(ds, options=replace(QUIET, validate_every=2))
    trainer.fit(ds, ds, epochs=2)
    assert (trainer.step, trainer.state.rows) == (10, 1000)


def test_a_run_directory_holds_what_it_says(tmp_path):
    ds = dataset(600)
    trainer = trainer_of(ds, out=tmp_path / "runs" / "a", options=replace(QUIET, log_every=2, save_every=4))
    trainer.fit(ds, dataset(200), epochs=1)
    folder = tmp_path / "runs" / "a"
    assert {path.name for path in folder.iterdir()} >= {
        *("config.json", "schema.json", "plan.json", "environment.json", "metrics.jsonl", "checkpoints", "report.html")
    }
    config = json.loads((folder / "config.json").read_text())
    assert config["model"]["name"] == "deepfm"
    assert config["model"]["config"]["dim"] == 4
    assert config["optimizer"]["lr"] == 2e-3
    assert config["row_optimizer"]["kind"] == "RowWiseAdagrad"
    plan = json.loads((folder / "plan.json").read_text())["tables"]
    assert {(name, table["dim"]) for name, table in plan.items()} >= {("user", 4), ("wide.user", 1)}
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(record["kind"], record["step"]) for record in records] == [
        *(("train", 2), ("train", 4), ("train", 6), ("valid", 6), ("final", 6))
    ]
    first, valid = records[0], records[3]
    assert {"loss", "auc", "logloss", "samples_per_s", "wait_share", "lr", "row_lr", "time", "epoch"} <= set(first)
    assert set(first["stages"]) == {"data", "forward", "backward", "step", "metrics", "other"}
    assert 0 <= first["wait_share"] <= 1
    assert 40 < first["tables"]["user"]["rows"] <= 50
    assert 0 < first["tables"]["user"]["hit_rate"] < 1
    assert valid["tables"]["user"]["norm"] > 0
    curve = valid["calibration_curve"]["click"]
    assert sum(curve["count"]) == 200
    assert Checkpoints(folder / "checkpoints").latest().name == "step-000000006"
    assert Checkpoints(folder / "checkpoints").best().name == "step-000000006"


def test_several_labels_have_metrics_each_and_weights():
    rows = clicks(1000)
    rows["like"] = rows["click"][::-1]
    ds = hr.data.table(rows, label=["click", "like"], batch_size=100)
    trainer = Trainer(MMoE(ds.schema, dim=4), options=replace(QUIET, label_weights={"like": 0.0}))
    history = trainer.fit(ds, ds)
    assert {"click/auc", "like/auc", "click/logloss"} <= set(history.valid[0])
    alone = Trainer(MMoE(ds.schema, dim=4), options=QUIET)
    alone.fit(ds)
    assert trainer.evaluate(ds)["loss"] != alone.evaluate(ds)["loss"]
    with pytest.raises(ValueError, match="label_weights names 'lik'; the labels are click, like"):
        Trainer(MMoE(ds.schema, dim=4), options=replace(QUIET, label_weights={"lik": 1.0})).fit(ds)


def test_rows_with_a_weight_of_zero_do_not_count():
    rows = clicks(600)
    rows["weight"] = np.repeat([1.0, 0.0], 300).astype(np.float32)
    weighted = hr.data.table(rows, label="click", weight="weight", batch_size=600)
    head = hr.data.table(
        {name: column[:300] for name, column in rows.items()}, label="click", weight="weight", batch_size=300
    )
    losses = []
    for ds in (weighted, head):
        torch.manual_seed(0)
        trainer = Trainer(Scores(), options=QUIET)
        losses.append([trainer.fit(ds).train[-1]["loss"] for _ in range(3)] + [trainer.evaluate(ds)["loss"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][2] < losses[0][0]


class Scores(nn.Module):
    """A model of nobody's in particular."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.emb = hr.EmbeddingCollection([hr.Table("user", dim=4, rows=50), hr.Table("item", dim=4, rows=30)])
        self.top = nn.Linear(8, outputs)

    def forward(self, batch):
        out = self.top(self.emb(batch).flat)
        return out[:, 0] if out.shape[1] == 1 else out


def test_any_module_and_any_loss_will_do(tmp_path):
    ds = dataset(1000)

    def focal(outputs, batch):
        chance = torch.sigmoid(outputs)
        right = torch.where(batch.label > 0, chance, 1 - chance)
        return (1 - right) ** 2 * -right.log()

    trainer = Trainer(
        Scores(), lambda parts: torch.optim.SGD(parts, lr=0.1), hr.optim.Adagrad, loss=focal, options=QUIET
    )
    trainer.fit(ds, epochs=3)
    assert trainer.evaluate(ds)["auc"] > 0.7
    rows = clicks(1000) | {"click": clicks(1000)["item"] % 3}
    classes = hr.data.table(rows, label="click", batch_size=100)
    trainer = Trainer(Scores(3), loss="softmax", options=QUIET)
    trainer.fit(classes, epochs=20)
    assert trainer.predict(classes).argmax(1).tolist() == rows["click"].tolist()
    assert set(trainer.evaluate(classes)) == {"loss"}


def test_mse_trains_a_regression():
    rows = clicks(1000) | {"click": np.sin(clicks(1000)["user"] + 0.0)}
    ds = hr.data.table(rows, label="click", batch_size=100)
    trainer = trainer_of(ds, loss="mse")
    trainer.fit(ds, epochs=15)
    assert trainer.evaluate(ds)["rmse"] < 0.3


def test_gauc_groups_by_a_column():
    ds = dataset(600)
    trainer = trainer_of(ds, metrics=("auc", "gauc:user"))
    assert "gauc:user" in trainer.fit(ds, ds).valid[0]
    with pytest.raises(ValueError, match="column 'tags' gives no group for each row; columns that do are user, item"):
        trainer_of(ds, metrics=("gauc:tags",)).fit(ds)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
def test_compile_compiles_the_dense_part_and_changes_little():
    ds = dataset(300)
    plain, compiled = trainer_of(ds), trainer_of(ds, options=replace(QUIET, compile="aot_eager"))
    for trainer in (plain, compiled):
        trainer.fit(ds, epochs=2)
    assert compiled.history.values("loss", "train") == pytest.approx(plain.history.values("loss", "train"), rel=1e-5)


# -- what goes wrong -----------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_checkpoints(tmp_path):
    ds = dataset(1000)
    calls = []

    def breaks(outputs, batch):
        calls.append(0)
        return outputs * (float("inf") if len(calls) > 7 else 1.0)

    trainer = trainer_of(ds, out=tmp_path, loss=breaks, options=replace(QUIET, save_every=3))
    with pytest.raises(FloatingPointError, match=r"step 8: the loss is -?(inf|nan); .*step-000000006 is saved; go on"):
        trainer.fit(ds)
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000000006"


def test_layers_that_are_not_finite_are_not_saved(tmp_path):
    class Spoil(Callback):
        def on_step(self, trainer, result):
            if trainer.step == 6:
                next(trainer.model.parameters()).data[0] = float("nan")

    ds = dataset(1000)
    trainer = trainer_of(ds, out=tmp_path, options=replace(QUIET, save_every=3), callbacks=[Spoil()])
    with pytest.raises(FloatingPointError, match=r"parameter '.*' holds values that are not finite after step 6"):
        trainer.fit(ds)
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000000003"


def test_an_epoch_without_rows_is_an_error():
    ds = dataset(100)
    with pytest.raises(ValueError, match="epoch 0 has no rows; look at the files"):
        trainer_of(ds).fit(ds.where([("user", ">", 1000)]))
    with pytest.raises(ValueError, match="there are no rows to evaluate on"):
        trainer_of(ds).evaluate(ds.where([("user", ">", 1000)]))


def test_a_label_outside_its_range_is_an_error_before_anything_changes():
    rows = clicks(300)
    rows["click"] = rows["click"].astype(np.int64)
    rows["click"][250] = 7
    ds = hr.data.table(rows, label="click", batch_size=100)
    trainer = trainer_of(ds)
    with pytest.raises(ValueError, match="label 'click' is 7 in row 250, but"):
        trainer.fit(ds)
    assert trainer.step == 2


def test_wrong_optimizers_are_told_apart():
    ds = dataset(100)
    model = model_of(ds)
    with pytest.raises(TypeError, match="optimizer is a SGD of rows; give it as row_optimizer="):
        Trainer(model, hr.optim.SGD(model, lr=0.1))
    with pytest.raises(TypeError, match=r"row_optimizer is torch's SGD; those of rows are in hybridrec.optim"):
        Trainer(model_of(ds), None, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="neither parameters nor tables"):
        Trainer(nn.Identity())


def test_options_are_those_of_the_trainer():
    assert Trainer(Scores()).options == TrainOptions()


def test_a_stream_and_a_data_loader_train_too():
    columns = pa.table(clicks(1000))

    def stream():
        return hr.data.stream(lambda: columns.to_batches(max_chunksize=150), label="click", batch_size=100)

    whole, parts = (trainer_of(dataset(10)) for _ in range(2))
    whole.fit(dataset(1000), epochs=2)
    parts.fit(stream(), epochs=2)
    assert (parts.step, parts.state.rows) == (20, 2000)
    assert_same(weights(whole.model), weights(parts.model))
    loaded = trainer_of(dataset(10))
    loaded.fit(DataLoader(dataset(1000), batch_size=None), epochs=2)
    assert_same(weights(whole.model), weights(loaded.model))


def test_an_unknown_backend_of_compile_lists_those_of_torch():
    ds = dataset(100)
    with pytest.raises(
        ValueError, match=r"compile is 'nope'; it must be true, false or a backend of torch: .*inductor"
    ):
        trainer_of(ds, options=replace(QUIET, compile="nope"))


def test_labels_that_a_metric_does_not_take_are_told_with_a_remedy():
    rows = clicks(100) | {"click": np.linspace(0, 1, 100, dtype=np.float32)}
    ds = hr.data.table(rows, label="click", batch_size=50)
    with pytest.raises(ValueError, match=r"the metrics cannot be taken: a label is .* want loss='mse'"):
        trainer_of(ds).fit(ds)


def test_bfloat16_is_refused_on_a_card_without_it_before_anything_is_trained(monkeypatch):
    cards = {0: ("NVIDIA H200", (9, 0)), 1: ("Tesla V100", (7, 0)), 2: ("Tesla T4", (7, 5)), 3: ("NVIDIA A100", (8, 0))}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: cards[device.index][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: cards[device.index][1])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for number, told in ((1, r"Tesla V100 \(compute capability 7.0\)"), (2, r"Tesla T4 \(compute capability 7.5\)")):
        monkeypatch.setattr(
            trainer_module, "device_of_model", lambda model, number=number: torch.device("cuda", number)
        )
        with pytest.raises(
            ValueError, match=rf"bf16 is true, but {told} does not .* cards from 8.0 on do; leave it out"
        ):
            trainer_of(dataset(), options=replace(QUIET, bf16=True))
    for device in (torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 3)):
        trainer_module.check_bf16(device)


def test_graphs_that_are_asked_for_are_refused_on_the_cpu():
    with pytest.raises(ValueError, match="graphs is true, but layers of the model are on the CPU"):
        trainer_of(dataset(), options=replace(QUIET, graphs=True))


@pytest.mark.parametrize("use", ["fit", "evaluate"])
def test_data_whose_features_are_made_in_another_way_than_the_models_are_refused(use):
    ds = dataset(200)
    other = ds.with_schema(ds.schema.edit("user", transforms=[hr.data.Modulo(7)]))
    with pytest.raises(ValueError, match=r"feature 'user': transforms .*Modulo.*, but none in training; open"):
        getattr(trainer_of(ds), use)(other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": dataset(10)}, r"model is a Dataset; it must be a torch\.nn\.Module"),
        ({"options": {"seed": 1}}, r"options is \{'seed': 1\}; it must be TrainOptions, such as TrainOptions\("),
        ({"metrics": "auc"}, r"metrics is the string 'auc'; it must be a list, such as \['auc'\]"),
    ],
    ids=["model", "options", "metrics"],
)
def test_arguments_of_another_kind_are_refused_with_what_to_give(arguments, message):
    with pytest.raises(TypeError, match=message):
        trainer_of(dataset(10), **arguments)


def test_resume_is_no_switch():
    with pytest.raises(TypeError, match=r"resume is True; it must be 'auto', the path of a checkpoint, or None"):
        trainer_of(dataset(10)).fit(dataset(10), resume=True)
