"""`hybridrec launch`: what is wrong is told before anything starts, in words that fit what was typed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from hybridrec.cli.commands import app
from hybridrec.train.checkpoint import Checkpoints, Contents


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"user": [1, 2, 3], "click": pa.array([0, 1, 0], pa.int8())}), "clicks.parquet")
    (tmp_path / "run.toml").write_text('out = "runs/a"\n[data]\npath = "clicks.parquet"\nlabel = "click"\n')
    return tmp_path


def refused(*words: str) -> str:
    """The one line that it says."""
    result = CliRunner().invoke(app, ["launch", *words])
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.toml"], "error: there is no file none.toml; name a run.toml, or the config.json of a run"),
        (["."], "error: . cannot be read: Is a directory; name a run.toml"),
        (["run.toml", "server.count=2"], "sections: data, model, optimizer, row_optimizer, train, servers, trainers"),
        (["run.toml", "servers.cuont=2"], "servers has no option 'cuont'; valid are count, staleness"),
        (["run.toml", "data.lable=x", "--out", "b"], "data has no option 'lable'; valid are path, label"),
        (["run.toml", "out=5", "--out", "b"], "out is 5; it must be a text"),
        (["run.toml", "data.path=gone.parquet"], "gone.parquet"),
        (["run.toml", "data.label=like"], "like"),
        (["run.toml", "data.valid=gone.parquet"], "validation data: gone.parquet"),
        (["run.toml", "model.name=dlmr"], "no model 'dlmr'; there are widedeep, dlrm"),
        (["run.toml", "model.name="], "no model ''; there are widedeep, dlrm"),
        (["run.toml", "model.dmi=8"], "model 'deepfm' has no option 'dmi'; it takes dim"),
        (["run.toml", "model.hidden=8"], "model.hidden is 8; it must be a list of whole numbers"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(here: Path, words: list[str], said: str):
    assert said in refused(*words)
    assert not (here / "runs").exists()


def test_an_unknown_section_is_told_with_those_that_there_are(here: Path):
    (here / "run.toml").write_text("[trainer]\ncount = 2\n")
    assert refused("run.toml").endswith("servers, loss, metrics, out, trainers\n")


def test_a_folder_that_holds_a_run_is_left_alone_and_the_command_that_goes_on_is_told(here: Path):
    with Checkpoints("runs/b/checkpoints") as checkpoints:
        checkpoints.save(Contents(torch.nn.Linear(1, 1)), 7)
    said = refused("run.toml", "servers.count=2", "--out", "runs/b")
    assert "runs/b holds a run already (its newest checkpoint is step-000000007)" in said
    assert "go on with it: hybridrec launch run.toml servers.count=2 --out runs/b --resume; or give another" in said
    assert [path.name for path in (here / "runs" / "b").iterdir()] == ["checkpoints"]
