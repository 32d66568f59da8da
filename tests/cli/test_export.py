"""`hybridrec export` on a run of the Trainer: the folder that it writes scores as the run does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from hybridrec.cli.export import export
from hybridrec.cli.outcome import told
from hybridrec.models import build
from hybridrec.serve import load as load_served
from hybridrec.train import Trainer, TrainOptions
from hybridrec.train.load import load
from tests.serve.trained import dataset, frame

app = typer.Typer()
app.command()(told(export))


def run(*words: str):
    return CliRunner().invoke(app, list(words))


def make_run(folder, loss: str = "bce", **options):
    ds = dataset()
    model = build("din", ds.schema, dim=4, history={"seen": "item"})
    chosen = TrainOptions(progress="none", **options)
    Trainer(model, out=folder, loss=loss, metrics=("rmse",) if loss == "mse" else None, options=chosen).fit(ds)
    return folder


@pytest.mark.parametrize(("loss", "options"), [("bce", {}), ("mse", {}), ("bce", {"bf16": True})])
def test_an_exported_run_scores_as_the_run_does(tmp_path, loss, options):
    folder = make_run(tmp_path / "run", loss, **options)
    result = run(str(folder), "--out", str(tmp_path / "served"))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"wrote {tmp_path / 'served'}: DIN, 3 tables, ")
    found = load_served(tmp_path / "served").predict(frame())
    np.testing.assert_allclose(found, load(folder).predict(frame()), rtol=0, atol=1e-6)


def test_the_summary_comes_as_json(tmp_path):
    folder = make_run(tmp_path / "run")
    result = run(str(folder), "--out", str(tmp_path / "served"), "--checkpoint", "latest", "--json")
    made = json.loads(result.stdout)
    assert made["tables"] == 3
    assert made["bytes"] == sum(
        path.stat().st_size
        for path in (tmp_path / "served").rglob("*")
        if path.is_file() and path.name != "manifest.json"
    )


def test_a_folder_that_is_no_run_and_one_that_is_full_are_errors(tmp_path):
    result = run(str(tmp_path), "--out", str(tmp_path / "served"))
    assert result.exit_code == 1
    assert "config.json" in result.stderr
    folder = make_run(tmp_path / "run")
    result = run(str(folder), "--out", str(folder))
    assert result.exit_code == 1
    assert "is not an empty folder" in result.stderr
