"""Configuration files, dotted changes, and errors that list what is valid."""

from __future__ import annotations

import json
import re

import pytest

from hybridrec.train.run_config import RunConfig, read_config, value_of, with_overrides

TOML = """
loss = "bce"
metrics = ["auc", "gauc:user"]

[data]
path = "clicks/*.parquet"
label = "click"

[model]
name = "dcnv2"
hidden = [64, 32]

[train]
epochs = 2
schedule = { kind = "cosine", warmup = 10 }
early_stopping = { metric = "auc", patience = 2 }
"""


def test_a_toml_file_is_a_config(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    config = RunConfig.of(read_config(tmp_path / "run.toml"))
    assert config.data.path == ["clicks/*.parquet"]
    assert config.data.label == ["click"]
    assert config.model == {"name": "dcnv2", "hidden": [64, 32]}
    assert config.options().schedule.warmup == 10
    assert config.options().early_stopping is not None
    assert RunConfig.of(json.loads(json.dumps(config.to_json()))) == config


def test_overrides_come_after_the_file(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    before = read_config(tmp_path / "run.toml")
    changes = ["model.dim=32", "model.hidden=[16]", "train.early_stopping.patience=7", "data.valid=0.1", "loss=mse"]
    config = RunConfig.of(with_overrides(before, changes))
    assert config.model == {"name": "dcnv2", "hidden": [16], "dim": 32}
    assert config.train["early_stopping"] == {"metric": "auc", "patience": 7}
    assert (config.data.valid, config.loss) == (0.1, "mse")
    assert before["model"] == {"name": "dcnv2", "hidden": [64, 32]}


def test_values_are_those_of_toml_or_text():
    assert [value_of(text) for text in ("1e-3", "-5", '"a b"', "runs/a", "{a = 1}", "none")] == [
        *(0.001, -5, "a b", "runs/a", {"a": 1}, None)
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, r"the configuration has no option 'modle'; valid are data, model, optimizer, row_optimizer, "),
        ({"data": {"lable": "x"}}, r"data has no option 'lable'; valid are path, label, "),
        ({"train": {"epoch": 1}}, r"train has no option 'epoch'; valid are epochs, steps, clip_norm, "),
        ({"optimizer": {"kind": "adan"}}, r"optimizer.kind is 'adan'; valid are adam, adamw, sgd, "),
        ({"optimizer": {"lrr": 1}}, r"optimizer has no option 'lrr'; valid are kind, lr, betas, "),
        (
            {"row_optimizer": {"kind": "adam", "beta": 1}},
            r"row_optimizer has no option 'beta'; valid are kind, lr, betas",
        ),
        ({"model": "deepfm"}, r"model is 'deepfm'; it must be a section: \[model\] in TOML"),
    ],
)
def test_an_unknown_name_lists_the_valid_ones(values, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.of(values)


def test_a_change_of_nothing_known_is_refused():
    with pytest.raises(
        ValueError, match=r"'modle.dim=3' changes nothing known; write SECTION.NAME=VALUE, sections: data"
    ):
        with_overrides({}, ["modle.dim=3"])


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none.toml; name a run.toml"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ValueError, match=r"bad.toml is no TOML: .*line 1, column 5.*; mend that line"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad.json is no JSON: .*line 1 column 2.*; mend that line"):
        read_config(tmp_path / "bad.json")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1\x80")
    with pytest.raises(ValueError, match=r"rows.parquet is no text; name a run.toml"):
        read_config(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=fast", "optimizer.lr is 'fast'; it must be a number from 0 on"),
        ("row_optimizer.lr=-1", "row_optimizer.lr is -1; it must be a number from 0 on"),
        ("train.clip_norm=abc", "TrainOptions.clip_norm is 'abc'; it must be a number from 0 on"),
        ("train.save_minutes=abc", "TrainOptions.save_minutes is 'abc'; it must be a number from 0 on"),
        ("train.label_weights=3", "TrainOptions.label_weights is 3; it must name a weight per label"),
        ("train.bf16=maybe", "TrainOptions.bf16 is 'maybe'; it must be true or false"),
        ("train.early_stopping=3", "TrainOptions.early_stopping is 3; it must be an EarlyStopping, such as"),
        ("data.batch_size=abc", "data.batch_size is 'abc'; it must be a whole number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_the_rule(override, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RunConfig.of(with_overrides({}, [override]))


def test_a_configuration_is_sections_not_a_list(tmp_path):
    (tmp_path / "run.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="holds a list; a configuration has sections"):
        read_config(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"batch_size": 0}}, "data.batch_size is 0; a batch has at least one row"),
        ({"data": {"columns": 3}}, "data.columns is 3; it must be a list of texts"),
        ({"data": {"shuffle": "yes"}}, "data.shuffle is 'yes'; it must be true or false"),
        ({"data": {"on_bad_file": "skp"}}, "data.on_bad_file is 'skp'; valid are error, skip"),
        ({"metrics": [3]}, r"metrics is \[3\]; it must be a list of texts"),
        ({"out": 3}, "out is 3; it must be a text"),
    ],
)
def test_a_value_of_another_kind_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.of(values)


def test_a_single_name_stands_for_a_list_of_one():
    config = RunConfig.of({"metrics": "auc", "data": {"columns": "user"}})
    assert (config.metrics, config.data.columns) == (["auc"], ["user"])
