"""`hybridrec checkpoint`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hybridrec as hr
from hybridrec.cli.checkpoint import checkpoint
from hybridrec.train.checkpoint import Checkpoints, Contents, open_table


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run with two checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    tables = [hr.Table("item", 2, rows=1000), hr.Table("user", 3, capacity=5000, dtype=torch.bfloat16)]
    model = nn.ModuleDict({"emb": hr.EmbeddingCollection(tables), "top": nn.Linear(5, 2)})
    rows = hr.optim.Adam(model)
    model["emb"]({"item": torch.tensor([1]), "user": torch.tensor([-7])}).flat.sum().backward()
    rows.step()
    contents = Contents(model, {"dense": torch.optim.SGD(model.parameters()), "rows": rows}, {"epoch": 1, "data": {}})
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(contents, 1200, metrics={"auc": 0.71234567, "loss": float("inf")}, best=True)
        checkpoints.save(contents, 900)
    return folder


def call(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(checkpoint, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def test_show_lists_the_checkpoints_of_a_run_in_the_order_they_were_written(run):
    lines = call("show", run).splitlines()
    assert lines == call("show", run / "checkpoints").splitlines()
    assert lines[0].split() == ["checkpoint", "written", "bytes", "tables", "rows", "metrics"]
    assert [line.split()[0] for line in lines[1:]] == ["step-000001200", "step-000000900"]
    assert lines[1].endswith("2  1,001  auc 0.712346  loss nan (best)")


def test_of_several_that_were_the_best_the_last_one_is_shown_as_such(tmp_path):
    model = nn.Linear(2, 1)
    with Checkpoints(tmp_path) as checkpoints:
        for step, auc in ((10, 0.6), (20, 0.7), (30, 0.65)):
            checkpoints.save(Contents(model, {}, {}), step, metrics={"auc": auc}, best=auc >= step / 33)
        assert checkpoints.best() == tmp_path / "step-000000020"
    assert [line.endswith("(best)") for line in call("show", tmp_path).splitlines()] == [False, False, True, False]


def test_show_tells_what_a_checkpoint_holds(run):
    path = run / "checkpoints" / "step-000001200"
    lines = call("show", path).splitlines()
    assert lines[0].startswith(f"{path}: step 1,200, the best so far, ")
    assert f"by hybridrec {hr.__version__}, torch {torch.__version__}" in lines[1]
    assert lines[2] == "metrics: auc 0.712346  loss nan"
    item, user = (" ".join(line.split()) for line in lines[5:7])
    assert item.startswith("emb.item 1,000 1,000 2 float32 adam exp_avg exp_avg_sq 1 ")
    assert user.startswith("emb.user 1 ≤ 5,000 3 bfloat16 adam exp_avg exp_avg_sq 1 ")
    assert lines[8:] == [
        "dense: 2 tensors, 12 numbers",
        "optimizers: dense (SGD), rows (Adam)",
        "state: epoch, data",
    ]


def test_show_lists_damaged_ones_too(run):
    victim = run / "checkpoints" / "step-000001200" / "manifest.json"
    content = victim.read_bytes()
    victim.write_bytes(content[:100])
    try:
        lines = call("show", run).splitlines()
        assert sorted(line.split()[0] for line in lines[1:]) == ["step-000000900", "step-000001200"]
        assert sum("cannot be read; see hybridrec checkpoint verify" in line for line in lines) == 1
        assert "error: " in call("show", victim.parent, code=1)
    finally:
        victim.write_bytes(content)


def test_show_as_json_has_the_manifests(run):
    first, second = map(json.loads, call("show", run, "--json").splitlines())
    assert (first["step"], second["step"]) == (1200, 900)
    assert first["tables"]["emb.user"]["capacity"] == 5000


def test_verify_says_what_is_sound_and_exits_1_where_something_is_not(run, tmp_path):
    assert [line.rsplit(": ")[-1] for line in call("verify", run).splitlines()] == ["sound", "sound"]
    victim = run / "checkpoints" / "step-000000900" / "tables" / "emb.item.arrow"
    content = victim.read_bytes()
    victim.write_bytes(content[:-5])
    try:
        lines = call("verify", run, code=1).splitlines()
        assert lines[0].endswith("step-000001200: sound")
        assert lines[1].endswith("step-000000900: damaged")
        assert "tables/emb.item.arrow: it has" in lines[2]
        second = json.loads(call("verify", run, "--json", code=1).splitlines()[1])
        assert [problem["file"] for problem in second["problems"]] == ["tables/emb.item.arrow"]
    finally:
        victim.write_bytes(content)


def test_tables_are_written_one_file_each(run, tmp_path):
    lines = call("tables", run, "--out", tmp_path / "all").splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        str(tmp_path / "all" / f"emb.{n}.arrow") for n in ("item", "user")
    ]
    assert "1,000 rows of emb.item" in lines[0]
    assert open_table(tmp_path / "all" / "emb.user.arrow")["id"].to_pylist() == [-7]
    call("tables", run, "--table", "emb.item", "--out", tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["emb.item.arrow"]
    assert "error: the checkpoint has no table 'item'; it has emb.item, emb.user" in call(
        "tables", run, "--table", "item", "--out", tmp_path / "none", code=1
    )


def test_what_is_no_checkpoint_is_an_error_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    for command in ("show", "verify"):
        assert "holds no checkpoint; give the folder of a run" in call(command, tmp_path, code=1)
        assert "error: there is no folder" in call(command, tmp_path / "nothing", code=1)
        assert "file is a file; give the folder of a run" in call(command, tmp_path / "file", code=1)


def test_a_checkpoint_without_its_manifest_is_damaged(tmp_path):
    (tmp_path / "dense.safetensors").touch()
    assert "manifest.json: " in call("verify", tmp_path, code=1)
