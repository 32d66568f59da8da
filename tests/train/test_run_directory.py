"""The folder of a run: records, files that appear whole, and folders that are none."""

from __future__ import annotations

import json
import math

import pytest

from hybridrec.train.history import History, numbers
from hybridrec.train.run_directory import RunDirectory
from tests.train.clicks import dataset, trainer_of


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


@pytest.mark.parametrize("inside", ["a", "a/b/c"])
def test_a_run_below_a_file_is_refused_with_a_remedy(tmp_path, inside):
    (tmp_path / "file").touch()
    with pytest.raises(
        OSError, match=r"cannot be kept in .*file is a file; give a folder that you may write to as out="
    ):
        RunDirectory(tmp_path / "file" / inside).check_place()


def test_a_folder_without_permission_is_refused_before_a_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    ds = dataset(100)
    with pytest.raises(OSError, match=r"cannot be kept in .*/a: .* cannot be written to; give a folder"):
        trainer_of(ds, out=tmp_path / "a").fit(ds)
    assert not (tmp_path / "a").exists()


def test_an_error_of_the_file_system_is_told_with_the_folder(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.touch", full)
    with pytest.raises(OSError, match=r"the run cannot be kept in .*/a: .*: Read-only file system; give a folder"):
        RunDirectory(tmp_path / "a").prepare()
