"""The folder of a run: records, files that appear whole, and folders that are none."""

from __future__ import annotations

import json
import math

import pytest

from hybridrec.train.history import History, numbers
from hybridrec.train.run_directory import RunDirectory


def record(step: int, kind: str = "train", **values) -> dict:
    return {"kind": kind, "step": step, **values}


def test_records_are_kept_up_to_a_count(tmp_path):
    run = RunDirectory(tmp_path / "a" / "b")
    for step in range(5):
        run.append(record(step, loss=0.5))
    assert [each["step"] for each in run.keep_records(3)] == [0, 1, 2]
    run.append(record(9))
    assert [each["step"] for each in run.records()] == [0, 1, 2, 9]


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    run = RunDirectory(tmp_path)
    run.append(record(1))
    with run.metrics.open("a") as file:
        file.write('{"kind": "train", "st')
    assert [each["step"] for each in run.records()] == [1]


def test_numbers_that_json_has_not_become_null(tmp_path):
    run = RunDirectory(tmp_path)
    run.append(record(1, auc=math.nan, inner={"list": [math.inf, 1.0]}))
    assert run.records() == [record(1, auc=None, inner={"list": [None, 1.0]})]


def test_files_are_json_and_a_missing_one_is_named(tmp_path):
    run = RunDirectory(tmp_path)
    run.write("plan.json", {"tables": {}})
    assert json.loads((tmp_path / "plan.json").read_text()) == {"tables": {}}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(FileNotFoundError, match=r"has no config.json; is it the folder of a run"):
        run.read("config.json")
    with pytest.raises(FileNotFoundError, match=r"has no schema.json"):
        run.schema()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; a run needs a folder of its own"):
        RunDirectory(tmp_path / "file")


def test_a_history_tells_records_by_kind():
    history = History([record(1, loss=0.7), record(1, "valid", auc=0.6, seconds=1.0), record(2, "final", auc=0.6)])
    assert (len(history), history[0]["step"], len(history.train), len(history.valid)) == (3, 1, 1, 1)
    assert history.final == record(2, "final", auc=0.6)
    assert History().final is None
    assert repr(history) == "History of 3 records\n  step 1: auc 0.6000"
    assert numbers(history[1]) == {"auc": 0.6}
