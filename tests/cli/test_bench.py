"""Benchmarks are run by name, with their own options, signals and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridrec.cli import bench
from hybridrec.cli.commands import app
from tests.patience import PATIENCE


def spawn(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hybridrec", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_all_questions_are_listed_and_parts_of_them_are_not():
    listed = dict(line.split(maxsplit=1) for line in CliRunner().invoke(app, ["bench"]).stdout.splitlines())
    assert {"data", "disk", "embedding_cpu", "parallel", "planner", "servers", "tiers_gpu", "train_gpu"} <= set(listed)
    assert not {"question", "chart", "embedding_ours", "train_plot"} & set(listed)
    assert all("?" in asked for asked in listed.values())


def test_options_are_those_of_the_benchmark_and_its_last_line_is_json():
    answer = json.loads(spawn("planner", "--quick", "--cases", "1", "--json").stdout.splitlines()[-1])
    assert answer["cases"] == 1
    assert answer["planner_gap"] >= 1


def test_help_before_the_name_is_ours_and_after_it_the_benchmarks():
    assert "hybridrec bench planner --quick" in CliRunner().invoke(app, ["bench", "--help"]).stdout
    assert "--cases CASES" in spawn("planner", "--help").stdout


def test_an_option_that_it_lacks_is_refused_by_the_benchmark():
    result = spawn("planner", "--colour")
    assert (result.returncode, "unrecognized arguments: --colour" in result.stderr) == (2, True)


def test_an_unknown_name_says_which_there_are():
    result = CliRunner().invoke(app, ["bench", "speed"])
    assert result.exit_code == 1
    assert "error: there is no benchmark 'speed'; there are data, disk, " in result.stderr


def test_without_a_checkout_it_says_where_benchmarks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "BESIDE", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench"])
    assert result.exit_code == 1
    assert f"no benchmarks in {tmp_path}" in result.stderr
    assert "run this in a checkout of hybridrec" in result.stderr
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "question.py").touch()
    (tmp_path / "benchmarks" / "mine.py").write_text('"""How fast?\n\nVery."""\noptions_of(1)\n')
    assert CliRunner().invoke(app, ["bench"]).stdout == "mine  How fast?\n"
