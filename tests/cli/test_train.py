"""train, evaluate, predict and doctor on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from typer.testing import CliRunner

from hybridrec.cli.doctor import doctor
from hybridrec.cli.evaluate import evaluate
from hybridrec.cli.inspect import inspect
from hybridrec.cli.outcome import told
from hybridrec.cli.predict import predict
from hybridrec.cli.train import train
from tests.patience import PATIENCE, wait_for
from tests.train.clicks import clicks

COMMANDS = {"train": train, "evaluate": evaluate, "predict": predict, "doctor": doctor, "inspect": inspect}
FLAGS = {
    "train": [
        *(
            "--batch-size",
            "--config",
            "--device",
            "--epochs",
            "--json",
            "--label",
            "--model",
            "--out",
            "--quiet",
            "--resume",
            "--resume-with",
            "--server-ca",
            "--server-token-file",
            "--servers",
            "--staleness",
        ),
        *("--steps", "--valid", "--weight"),
    ],
    "evaluate": ["--batch-size", "--checkpoint", "--device", "--json"],
    "predict": ["--batch-size", "--checkpoint", "--column", "--device", "--force", "--json", "--out"],
    "doctor": ["--json"],
}
PROGRAM = "from tests.cli.test_train import app; app()"
app = typer.Typer(pretty_exceptions_enable=False)
for command in COMMANDS.values():
    app.command()(told(command))


def invoke(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(clicks(4000)), tmp_path / "clicks.parquet")
    return tmp_path / "clicks.parquet"


def test_the_flags_are_frozen():
    """Scripts rely on them: add here what you add, and think twice before you remove."""
    group = typer.main.get_command(app)
    for name, flags in FLAGS.items():
        found = group.get_command(group.make_context("hybridrec", [name]), name)  # type: ignore[attr-defined]
        options = [opt for part in found.params for opt in part.opts if part.param_type_name == "option"]
        assert sorted(set(options) - {"--help"}) == sorted(flags), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_that_name_the_command(name):
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert result.output.split("Examples", 1)[1].count(f"hybridrec {name}") >= 3


def test_train_evaluate_predict_go_together(data):
    result = invoke("train", data, "--label", "click", "--valid", "0.25", "--out", "runs/a", "--json", "model.dim=4")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["metrics"]["auc"] > 0.6
    assert (told["run"], told["steps"]) == ("runs/a", 47)
    assert Path(told["report"]).exists()
    config = json.loads(Path("runs/a/config.json").read_text())
    assert config["run"]["data"]["label"] == ["click"]
    assert config["model"]["config"]["dim"] == 4

    shown = invoke("evaluate", "runs/a", data, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["auc"] > 0.6
    assert invoke("evaluate", "runs/a", data).stdout.startswith("loss ")

    written = invoke("predict", "runs/a", data, "--out", "scores.parquet", "--column", "user")
    assert written.exit_code == 0, written.output
    assert written.stdout.startswith("wrote scores.parquet: 4,000 rows")
    assert pq.read_table("scores.parquet").column_names == ["user", "score"]
    assert pq.read_table("scores.parquet")["user"].to_pylist() == clicks(4000)["user"].tolist()


def test_a_config_file_with_changes_and_a_run_of_that_run(data):
    Path("run.toml").write_text('[data]\npath = "clicks.parquet"\nlabel = "click"\n[train]\nsteps = 5\n')
    first = invoke("train", "--config", "run.toml", "train.steps=3", "model.dim=2", "--json")
    assert first.exit_code == 0, first.output
    assert (json.loads(first.stdout)["run"], json.loads(first.stdout)["steps"]) == ("runs/deepfm-1", 3)
    again = invoke("train", "--config", "runs/deepfm-1/config.json", "--steps", "4", "--out", "runs/b", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["steps"] == 4
    assert json.loads(Path("runs/b/config.json").read_text())["model"]["config"]["dim"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label", "clik"], "did you mean 'click'?"),
        ([], "which column is the label?"),
        (["--label", "click", "--model", "deep"], "no model 'deep'; there are widedeep, dlrm"),
        (["--label", "click", "model.dims=3"], "model 'deepfm' has no option 'dims'; it takes dim"),
        (["--label", "click", "train.epoch=3"], "train has no option 'epoch'; valid are epochs"),
        (["--label", "user"], "label 'user' is"),
        (["--label", "click", "--weight", "click"], "column 'click' is named twice as label or weight"),
        (["--label", "click", "modle.dim=3"], "'modle.dim=3' is neither a file nor a setting; did you mean model.dim="),
        (["--label", "click", "model.hidden=abc"], "model.hidden is 'abc'; it must be a list of whole numbers"),
        (["--label", "click", "model.dim=-3"], "model.dim is -3; it must be a whole number from 1 on"),
        (["--label", "click", "data.columns=3"], "data.columns is 3; it must be a list of texts"),
        (["--label", "click", "--valid", "clicks.csv"], "validation data"),
        (["--label", "click", "clicks.csv"], "clicks.parquet is read as Parquet and clicks.csv as CSV"),
        (["--label", "click", "row_optimizer.lr=1e30", "train.log_every=1"], "step "),
    ],
)
def test_errors_are_one_line_and_exit_1(data, words, message):
    Path("clicks.csv").write_text("user,item,tags,age\n1,2,3,0.5\n")
    result = invoke("train", data, "--out", "runs/a", "--quiet", *words)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room for 1.18 GiB"), FloatingPointError("it is nan")])
def test_a_step_that_fails_is_told_in_one_line_with_what_is_saved(data, error, monkeypatch):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("hybridrec.train.fit.train_step", fail)
    result = invoke("train", data, "--label", "click", "--quiet", "--out", "runs/full")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [f"error: step 1: {error}. Nothing was saved"]


def test_a_run_is_not_written_over_but_resumed(data):
    words = ("train", data, "--label", "click", "--out", "runs/a", "--steps", "3", "--quiet")
    assert invoke(*words).exit_code == 0
    assert "holds a run already" in invoke(*words).stderr
    more = invoke("train", "--out", "runs/a", "--resume", "--steps", "5", "--json")
    assert more.exit_code == 0, more.output
    assert json.loads(more.stdout)["steps"] == 5


def test_another_model_is_refused_with_a_short_list_and_the_remedy(data):
    assert invoke("train", data, "--label", "click", "--out", "runs/a", "--steps", "3", "--quiet").exit_code == 0
    result = invoke("train", "--out", "runs/a", "--resume", "--quiet", "--steps", "5", "model.dim=3")
    assert result.exit_code == 1
    first, *listed, more, remedy = result.stderr.splitlines()
    assert first.endswith("step-000000003 is of another model: model.dim was 16 and is 3")
    assert len(listed) == 3
    assert "more" in more
    assert "leave the model as it was (hybridrec train --out runs/a --resume)" in remedy


def test_nothing_to_resume_is_said(data):
    assert "runs/a holds no run to go on with" in invoke("train", "--out", "runs/a", "--resume").stderr
    result = invoke("train", data, "--label", "click", "--out", "runs/a", "--steps", "3", "--resume")
    assert result.exit_code == 0
    assert "nothing to resume in runs/a" in result.stderr


def test_the_summary_tells_the_last_validation_and_the_best(data):
    words = ("train", data, "--label", "click", "--valid", "0.25", "--epochs", "3", "--out", "runs/a")
    result = invoke(*words, "train.best=calibration", 'metrics=["auc","calibration"]', "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert set(told["best"]) == {"step", "metrics"}
    assert told["best"]["metrics"]["calibration"] <= told["metrics"]["calibration"]
    shown = invoke("train", "--out", "runs/a", "--resume").stdout
    assert "last validation: loss" in shown
    assert "predict and evaluate use it" in shown


def test_one_metric_may_be_named_without_a_list(data):
    result = invoke("train", data, "--label", "click", "--valid", "0.25", "--steps", "3", "--json", "metrics=logloss")
    assert set(json.loads(result.stdout)["metrics"]) == {"loss", "logloss"}


def test_remedies_are_those_of_the_command_line(data):
    Path("bad.parquet").write_bytes(data.read_bytes()[:500])
    words = ("train", data, "bad.parquet", "--label", "click", "--out", "runs/a", "--steps", "3")
    refused = invoke(*words)
    assert "training can go without it: data.on_bad_file=skip" in refused.stderr
    assert 'on_bad_file="skip"' not in refused.stderr
    skipped = invoke(*words, "data.on_bad_file=skip")
    assert skipped.exit_code == 0, skipped.output
    assert "left out, as it cannot be read: bad.parquet" in skipped.stderr
    again = invoke("train", data, "--label", "click", "--out", "runs/a")
    assert "go on with --resume, or give another folder as --out" in again.stderr


def test_a_schema_file_is_written_edited_and_trained_with(data):
    pq.write_table(pq.read_table(data).append_column("said", pa.array(["yes", "no"] * 2000)), "said.parquet")
    refused = invoke("train", "said.parquet", "--label", "said")
    assert "hybridrec inspect DATA --schema s.json" in refused.stderr
    assert invoke("inspect", "said.parquet", "--schema", "s.json").exit_code == 0
    schema = json.loads(Path("s.json").read_text())
    said = next(feature for feature in schema["features"] if feature["name"] == "said")
    said.update(kind="label", null="error", transforms=[{"op": "is_in", "values": ["yes"]}])
    Path("s.json").write_text(json.dumps(schema))
    result = invoke("train", "said.parquet", "--steps", "3", "--json", "data.schema=s.json")
    assert result.exit_code == 0, result.output
    said.update(kind="id", null="id")
    Path("as_written.json").write_text(json.dumps(schema))
    named = invoke("train", "said.parquet", "--steps=3", "--json", "data.schema=as_written.json", "--label=said")
    assert named.exit_code == 0, "--label is enough to make it a label: " + named.output
    missing = invoke("train", "said.parquet", "data.schema=s.json", "--label", "sayd")
    assert missing.stderr.endswith("(did you mean 'said'?)\n")
    more = invoke("train", "said.parquet", "--steps", "3", "--json", "data.schema=s.json", "--label", "click")
    config = json.loads(Path(json.loads(more.stdout)["run"], "config.json").read_text())
    assert config["model"]["name"] == "mmoe", "the labels are those of the file and of --label"


def test_a_missing_column_at_predict_time_is_one_line(data):
    assert invoke("train", data, "--label", "click", "--out", "runs/a", "--steps", "3", "--quiet").exit_code == 0
    pq.write_table(pq.read_table(data).drop_columns(["age"]), "less.parquet")
    result = invoke("predict", "runs/a", "less.parquet", "--out", "scores.parquet")
    assert result.exit_code == 1
    assert "no column 'age', which the model was trained with" in result.stderr
    assert not Path("scores.parquet").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")
def test_ctrl_c_saves_and_says_how_to_go_on(data):
    words = ["train", str(data), "--label", "click", "--out", "runs/a", "--epochs", "1000", "train.log_every=1"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", PROGRAM, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=data.parent) as process:
        metrics = Path("runs/a/metrics.jsonl")
        wait_for(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text()))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "is saved; go on with hybridrec train --out runs/a --resume" in errors
    assert invoke("evaluate", "runs/a", data, "--checkpoint", "latest").exit_code == 0


def test_a_run_whose_servers_were_started_with_it_goes_on_with_the_command_that_starts_them(data):
    said = "hybridrec launch run.toml --resume"
    words = ["train", data, "--label", "click", "--out", "runs/a", "--steps", "2", "--resume-with", said]
    assert invoke(*words).exit_code == 0
    again = invoke("train", "--out", "runs/a", "--resume")
    assert again.exit_code == 1
    assert f"the servers of runs/a were started with it, and are gone; go on with {said}, or name" in again.stderr
    words = ["--config", "runs/a/config.json", "--out", "runs/a", "--resume", "--resume-with", said]
    other = invoke("train", *words, "model.dim=3")
    assert f"leave the model as it was ({said}), or give another folder as --out" in other.stderr


def test_doctor_tells_what_works():
    found = json.loads(invoke("doctor", "--json").stdout)
    assert found["native"]["loaded"]
    assert found["native"]["instructions"] in ("avx512", "avx2", "generic", "neon")
    assert found["packages"]["torch"]
    assert found["gpu"]["kernels"] in ("on", "off")
    shown = invoke("doctor")
    assert shown.exit_code == 0
    assert [line.split("  ")[0] for line in shown.stdout.splitlines()] == [
        *("hybridrec", "python", "packages", "system", "native core", "threads", "GPU kernels")
    ]


@pytest.mark.parametrize(
    "words", [("train", "clicks.parquet", "--label", "click"), ("evaluate", "run", "clicks.parquet")]
)
def test_a_device_that_holds_no_rows_is_refused(data, words):
    assert invoke("train", data, "--label", "click", "--steps", 1, "--out", "run", "--quiet").exit_code == 0
    found = invoke(*words, "--device", "tpu")
    assert found.exit_code == 1
    assert "device is 'tpu'; rows live on 'cpu' or on 'cuda'" in found.output
