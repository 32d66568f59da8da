"""The frame of all benchmarks keeps what they answer and says what they are asked."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

MODULES = ("question",)


@pytest.fixture
def question(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["question"]


def test_a_later_answer_of_the_day_takes_the_place_of_the_first(question: ModuleType, tmp_path: Path) -> None:
    assert question.kept_before("planner-2026-01-02", tmp_path) == {}
    for gap in (1.5, 1.25):
        path = question.keep({"gap": gap}, "planner-2026-01-02", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name] == ["planner-2026-01-02.json"]
    assert question.kept_before("planner-2026-01-02", tmp_path) == {"gap": 1.25}


def test_a_part_that_is_asked_later_joins_what_others_said(question: ModuleType, tmp_path: Path) -> None:
    question.keep({"gap": 1.5, "load": 3, "parts": {"a": 1, "b": 2}}, "x-2026-01-02", tmp_path)
    later = question.with_before({"load": 0, "parts": {"b": 5}}, "x-2026-01-02", ["parts", "none"], tmp_path)
    assert later == {"gap": 1.5, "load": 0, "parts": {"a": 1, "b": 5}}


def test_small_sizes_are_those_of_a_quick_run_unless_others_are_named(
    question: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = question.options_of("How?")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=100)
    monkeypatch.setattr(sys, "argv", ["how.py", "--quick", "--batch", "7"])
    args = question.parsed(parser, {"rows": 10, "batch": 1})
    assert (args.rows, args.batch, args.json, args.save) == (10, 7, False, False)


def test_parts_are_all_or_those_that_are_named(question: ModuleType) -> None:
    parser = question.options_of("How?")
    question.add_parts(parser, ("fast", "small"))
    assert parser.parse_args([]).only == ["fast", "small"]
    assert parser.parse_args(["--only", "small"]).only == ["small"]


def test_a_reader_learns_of_the_machine_the_versions_and_the_sizes(question: ModuleType) -> None:
    found = question.about(Namespace(rows=5, cache="x"), ["rows"], ["numpy"], gpu={"name": "none"})
    assert found["rows"] == 5
    assert "cache" not in found
    assert found["versions"]["numpy"] == np.__version__
    assert found["machine"]["gpu"] == {"name": "none"}
    assert found["machine"]["cores"] > 0


def test_an_answer_is_told_before_its_problems_are(question: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no peer; no room"):
        question.tell({"gap": 1.5}, Namespace(json=True), str, ["no peer", "no room"])
    assert json.loads(capsys.readouterr().out) == {"gap": 1.5}
    question.tell({"gap": 1.5}, Namespace(json=False), lambda answer: f"gap: {answer['gap']}")
    assert capsys.readouterr().out == "gap: 1.5\n"


def test_without_the_module_that_draws_there_is_a_note(
    question: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    question.picture({}, "no_such_plot", "gap")
    assert "no picture: No module named 'no_such_plot'" in capsys.readouterr().err
