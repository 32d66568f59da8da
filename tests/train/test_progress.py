"""What people see while a fit runs."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hybridrec.train import progress
from hybridrec.train.progress import Display, Lines, Live, line_of, make_display
from tests.patience import PATIENCE

TRAIN = {
    **{"kind": "train", "step": 20, "epoch": 0, "time": 1.0, "loss": 0.5, "auc": 0.75, "samples_per_s": 12345.6},
    **{"steps_per_s": 2.0, "wait_share": 0.5, "lr": 0.1},
}


def test_a_line_tells_speed_loss_auc_time_left_and_what_is_waited_for():
    line = line_of(TRAIN, 220)
    assert line == (
        "train  step 20 of 220  loss 0.5000  auc 0.7500  12,346 samples/s  input-bound (50 % waiting)  1:40 left"
    )
    assert "compute-bound (1 % waiting)" in line_of(TRAIN | {"wait_share": 0.01}, None)
    assert "2:00:00 left" in line_of(TRAIN, 20 + 2 * 7200)


def test_lines_of_training_are_few_and_those_of_validation_all_there(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    lines = Lines()
    lines.begin(0, 100)
    for _ in range(5):
        lines.record(TRAIN)
        clock[0] += 4
    lines.record({"kind": "valid", "step": 20, "epoch": 0, "auc": 0.5})
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in shown] == ["train", "train", "valid"]


def test_the_display_follows_the_terminal(monkeypatch):
    assert type(make_display("none")) is Display
    assert isinstance(make_display("auto"), Lines), "pytest's stderr is no terminal"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(make_display("auto"), Live)
    assert isinstance(make_display("lines"), Lines)


PROGRAM = """
from dataclasses import replace
from tests.train.clicks import QUIET, dataset, trainer_of
ds = dataset(3000, batch_size=20)
trainer_of(ds, options=replace(QUIET, progress="auto")).fit(ds, ds)
"""


@pytest.mark.skipif(not hasattr(pty, "openpty"), reason="pseudo-terminals are of POSIX")
def test_on_a_terminal_a_bar_is_drawn_and_gone_at_the_end():
    ours, theirs = pty.openpty()
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=theirs, cwd=root, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert process.wait(timeout=PATIENCE) == 0
    os.close(ours)
    text = shown.decode()
    assert "samples/s" in text
    assert "/150" in text
    assert "loss 0." in text
    assert "compute-bound" in text or "input-bound" in text
    assert "valid  step 150" in text
