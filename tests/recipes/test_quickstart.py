"""The quickstart: what it prints, what it keeps, and that Ctrl-C leaves nothing half-made."""

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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, *words: object, **streams) -> subprocess.Popen:
    command = [sys.executable, "-m", "recipes.quickstart", "--folder", str(folder), *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **streams)


def run(folder: Path, *words: object) -> subprocess.CompletedProcess:
    process = start(folder, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_it_streams_every_row_and_says_what_it_saw(tmp_path):
    done = run(tmp_path / "here", "--rows", 20_000, "--epochs", 2, "--batch-size", 3000)
    path = tmp_path / "here" / "clicks.parquet"
    about = json.loads(pq.read_metadata(path).metadata[b"hybridrec.synthetic"])
    assert done.returncode == 0, done.stderr
    assert "26 ids" in done.stdout
    assert "2 lists of ids" in done.stdout
    assert "13 dense" in done.stdout
    assert re.search(r"^rows +40,000 in 14 batches", done.stdout, re.MULTILINE)
    assert re.search(r"^speed +[\d,]+ rows/s, [\d,]+ ids/s", done.stdout, re.MULTILINE)
    assert re.search(rf"^mean label +{about['click_rate']:.4f}$", done.stdout, re.MULTILINE)
    assert re.search(rf"^best AUC +{about['best_auc']:.4f} ", done.stdout, re.MULTILINE)
    assert re.search(r"^peak memory +\d+\.\d MB", done.stdout, re.MULTILINE)
    assert re.search(rf"^data +{re.escape(str(path))} ", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout + done.stderr
    assert [entry.name for entry in path.parent.iterdir()] == ["clicks.parquet"]

    inspect = next(line for line in done.stdout.splitlines() if " inspect " in line)
    shown = subprocess.run(shlex.split(inspect), cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "20,000 rows, 42 columns" in shown.stdout


def test_a_second_run_uses_the_data_that_is_there_and_other_rows_replace_it(tmp_path):
    first = run(tmp_path, "--rows", 2000, "--epochs", 1)
    path = tmp_path / "clicks.parquet"
    written = path.stat().st_mtime_ns
    second = run(tmp_path, "--rows", 2000, "--epochs", 1)
    assert (first.returncode, second.returncode, path.stat().st_mtime_ns) == (0, 0, written)
    assert "generated" in first.stdout
    assert "is there: 2,000 rows" in second.stdout
    third = run(tmp_path, "--rows", 3000, "--epochs", 1)
    assert "is replaced" in third.stdout
    assert pq.read_metadata(path).num_rows == 3000


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "clicks.parquet")
    done = run(tmp_path, "--rows", 2000)
    assert done.returncode == 1
    assert "is no file of synthetic clicks; move it away" in done.stderr
    assert pq.read_table(tmp_path / "clicks.parquet").to_pydict() == {"a": [1]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_generation_leaves_nothing(tmp_path, number):
    folder = tmp_path / "here"
    process = start(folder, "--rows", 50_000_000, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder.exists() and any(folder.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert not folder.exists()


def test_an_interrupted_stream_ends_at_once_and_keeps_the_data(tmp_path):
    process = start(tmp_path, "--rows", 50_000, "--epochs", 10_000, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    while "epoch 2 of" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, "interrupted")
    assert [entry.name for entry in tmp_path.iterdir()] == ["clicks.parquet"]


def test_a_terminal_gets_a_bar(tmp_path):
    ours, theirs = pty.openpty()
    process = start(tmp_path, "--rows", 2000, "--epochs", 1, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    out, _ = process.communicate(timeout=100)
    shown = b""
    with open(ours, "rb", buffering=0) as screen:
        try:
            while part := screen.read(65536):
                shown += part
        except OSError:  # the other end is closed
            pass
    assert process.returncode == 0
    assert b"generating clicks" in shown
    assert b"epoch 1 of 1" in shown
    assert "epoch 1 of 1: 2,000 rows" in out
