"""train, evaluate, predict and doctor on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from hybridrec.cli.doctor import doctor
from hybridrec.cli.evaluate import evaluate
from hybridrec.cli.outcome import told
from hybridrec.cli.predict import predict
from hybridrec.cli.train import train
from tests.train.clicks import clicks

COMMANDS = {"train": train, "evaluate": evaluate, "predict": predict, "doctor": doctor}
FLAGS = {
    "train": [
        *("--batch-size", "--config", "--epochs", "--json", "--label", "--model", "--out", "--quiet", "--resume"),
        *("--steps", "--valid", "--weight"),
    ],
    "evaluate": ["--batch-size", "--checkpoint", "--json"],
    "predict": ["--batch-size", "--checkpoint", "--column", "--force", "--json", "--out"],
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
    assert (json.loads(first.stdout)["run"], json.loads(first.stdout)["steps"]) == ("runs/model-1", 3)
    again = invoke("train", "--config", "runs/model-1/config.json", "--steps", "4", "--out", "runs/b", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["steps"] == 4
    assert json.loads(Path("runs/b/config.json").read_text())["model"]["config"]["dim"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label", "clik"], "no column named 'clik'; the data has user, item"),
        ([], "which column is the label?"),
        (["--label", "click", "--model", "deep"], "no model 'deep'; there are widedeep, dlrm"),
        (["--label", "click", "model.dims=3"], "model 'deepfm' has no option 'dims'; it takes dim"),
        (["--label", "click", "train.epoch=3"], "train has no option 'epoch'; valid are epochs"),
        (["--label", "user"], "label 'user' is"),
        (["--label", "click", "row_optimizer.lr=1e30", "train.log_every=1"], "step "),
    ],
)
def test_errors_are_one_line_and_exit_1(data, words, message):
    result = invoke("train", data, "--out", "runs/a", "--quiet", *words)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_a_run_is_not_written_over_but_resumed(data):
    words = ("train", data, "--label", "click", "--out", "runs/a", "--steps", "3", "--quiet")
    assert invoke(*words).exit_code == 0
    assert "holds a run already" in invoke(*words).stderr
    more = invoke("train", "--out", "runs/a", "--resume", "--steps", "5", "--json")
    assert more.exit_code == 0, more.output
    assert json.loads(more.stdout)["steps"] == 5


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
        metrics, began = Path("runs/a/metrics.jsonl"), time.monotonic()
        while not (metrics.exists() and metrics.read_text()) and time.monotonic() - began < 60:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "is saved; go on with fit(resume='auto'), or hybridrec train ... --resume" in errors
    assert invoke("evaluate", "runs/a", data, "--checkpoint", "latest").exit_code == 0


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
