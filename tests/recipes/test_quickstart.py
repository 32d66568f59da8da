"""The quickstart: what it prints, what it keeps, how it goes on, and that Ctrl-C leaves nothing half-made."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from hybridrec.cli.commands import app
from hybridrec.data.synthetic import tables
from recipes.quickstart import best_auc, make_way
from tests.patience import PATIENCE, wait_for

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--rows", 2000, "--batch-size", 256)


def start(folder: Path, *words: object, **streams) -> subprocess.Popen:
    command = [sys.executable, "-m", "recipes.quickstart", "--folder", str(folder), *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **streams)


def run(folder: Path, *words: object) -> subprocess.CompletedProcess:
    process = start(folder, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def fact(name: str, out: str) -> str:
    found = re.search(rf"^{name} +(.*)$", out, re.MULTILINE)
    assert found is not None, out
    return found[1]


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_it_trains_and_tells_the_auc_reached_beside_the_best(tmp_path):
    folder = tmp_path / "here"
    done = run(folder, "--rows", 20_000, "--batch-size", 512)
    assert done.returncode == 0, done.stderr
    for part in ("26 ids", "2 lists of ids", "13 dense", "training DeepFM"):
        assert part in done.stdout
    assert fact("trained", done.stdout).startswith("18,000 rows in 36 steps")
    final = records(folder)[-1]
    assert fact("AUC", done.stdout) == f"{final['auc']:.4f} on 2,000 rows that were held out"
    best = best_auc(range(18_000, 20_000))
    assert best is not None
    assert fact("best AUC", done.stdout).startswith(f"{best:.4f} on the same rows")
    assert fact("reached", done.stdout).startswith(f"{100 * (final['auc'] - 0.5) / (best - 0.5):.1f} %")
    assert 0.6 < final["auc"] < best
    assert Path(fact("report", done.stdout).split(" (")[0]).stat().st_size > 10_000
    assert "\x1b" not in done.stdout + done.stderr
    assert sorted(entry.name for entry in folder.iterdir()) == ["clicks.parquet", "run"]

    for name in ("evaluate", "predict"):
        program, *words = shlex.split(next(line for line in done.stdout.splitlines() if f" {name} " in line))
        assert (ROOT / program).exists()
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == 0, shown.output
    assert pq.read_table(folder / "scores.parquet").column_names == ["id_26", "score"]


@pytest.mark.parametrize("rows", [range(14_000, 20_000), range(0, 20_000), range(16_384, 16_500)])
def test_the_best_auc_is_that_of_the_true_probabilities_of_these_rows(rows):
    whole = pa.Table.from_batches(tables(20_000, probability=True))
    label, probability = (whole[name].to_numpy()[rows.start : rows.stop] for name in ("click", "probability"))
    assert best_auc(rows) == pytest.approx(roc_auc_score(label, probability), abs=1e-4)


def test_the_best_auc_of_rows_of_one_class_is_undefined():
    label = next(tables(1000))["click"].to_numpy()
    row = int(np.flatnonzero(label)[0])
    assert best_auc(range(row, row + 1)) is None


@pytest.mark.slow
def test_a_second_run_uses_the_data_that_is_there_and_trains_anew(tmp_path):
    first = run(tmp_path, *SMALL)
    path = tmp_path / "clicks.parquet"
    written = path.stat().st_mtime_ns
    second = run(tmp_path, *SMALL)
    assert (first.returncode, second.returncode, path.stat().st_mtime_ns) == (0, 0, written), second.stderr
    assert "generated" in first.stdout
    assert "is there: 2,000 rows" in second.stdout
    assert "holds a run that has ended and is replaced: training anew" in second.stdout
    assert fact("AUC", second.stdout) == fact("AUC", first.stdout)
    third = run(tmp_path, "--rows", 3000)
    assert "holds 2,000 other rows and is replaced" in third.stdout
    assert pq.read_metadata(path).num_rows == 3000


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "clicks.parquet")
    done = run(tmp_path, "--rows", 2000)
    assert done.returncode == 1
    assert "is no file of synthetic clicks; move it away" in done.stderr
    assert pq.read_table(tmp_path / "clicks.parquet").to_pydict() == {"a": [1]}


@pytest.mark.parametrize("config", [None, "{}", '{"quickstart": ', "[]"])
def test_a_run_of_somebody_else_is_not_replaced(tmp_path, config):
    (tmp_path / "kept.txt").write_text("mine")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match="is no run of the quickstart; move it away, or choose another --folder"):
        make_way(tmp_path, {"rows": 2000})
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_an_unfinished_run_of_other_settings_is_replaced(tmp_path, capsys):
    out = tmp_path / "run"
    for asked in ({"rows": 2000}, {"rows": 3000}):
        out.mkdir(exist_ok=True)
        (out / "config.json").write_text(json.dumps({"quickstart": {"rows": 2000}}))
        (out / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
        assert make_way(out, asked) == out.exists() == (asked["rows"] == 2000)
    assert "was asked for otherwise and is replaced" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_generation_leaves_nothing(tmp_path, number):
    folder = tmp_path / "here"
    process = start(folder, "--rows", 50_000_000, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: process.poll() is not None or (folder.exists() and any(folder.iterdir())))
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_training_goes_on_and_ends_as_if_left_alone(tmp_path, number):
    words = ("--rows", 10_000, "--batch-size", 64, "--epochs", 3)
    process = start(tmp_path, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    saved = tmp_path / "run" / "checkpoints"
    while all(path.suffix == ".part" for path in saved.glob("step-*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert "run the same command again to go on from there" in err
    second = run(tmp_path, *words)
    assert second.returncode == 0, second.stderr
    assert "holds a run that was interrupted, which goes on" in second.stdout
    assert "resumed from" in second.stderr
    assert [each["step"] for each in records(tmp_path) if each["kind"] == "valid"] == [*range(36, 423, 36), 423]
    if number != signal.SIGINT:  # a third run is for the slow tests
        assert fact("AUC", second.stdout) == fact("AUC", run(tmp_path, *words).stdout)


def test_a_terminal_gets_a_bar(tmp_path):
    ours, theirs = pty.openpty()
    process = start(tmp_path, *SMALL, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    out, _ = process.communicate(timeout=PATIENCE)
    shown = b""
    with open(ours, "rb", buffering=0) as screen:
        try:
            while part := screen.read(65536):
                shown += part
        except OSError:  # the other end is closed
            pass
    assert process.returncode == 0
    assert b"generating clicks" in shown
    assert b"training" in shown
    assert "held out" in out
