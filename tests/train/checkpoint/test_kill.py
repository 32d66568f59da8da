"""A run that is killed at any moment, and resumed as often as need be, ends as the run that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading

import pytest
import torch

from hybridrec.embedding import LFU, MinCount, Table
from hybridrec.optim import Adagrad
from hybridrec.train.checkpoint import Checkpoints
from tests.patience import PATIENCE
from tests.train.checkpoint.runs import Click, Run, differences

STEPS = 120
FEATURES = {"item": 50_000, "history": 50_000, "user": 60}


def make() -> Run:
    torch.manual_seed(0)
    item = Table("item", 8, rows=50_000, features=["item", "history"], dtype=torch.bfloat16)  # takes a while to write
    user = Table("user", 4, capacity=40, eviction=LFU(), admission=MinCount(2))
    return Run(Click(item, user), lambda model: Adagrad(model, lr=0.1), FEATURES)


def go_on(folder: str, dies: int = -1) -> Run:
    """Train to the end, from the latest checkpoint if there is one; saves every third step. Or die soon after one."""
    run = make()
    with Checkpoints(folder, keep=2) as checkpoints:
        latest = checkpoints.latest()
        if latest is not None:
            run.resume(latest)
        while run.step < STEPS:
            run.train(1)
            if run.step == dies:
                threading.Timer(0.05 * random.Random(dies).random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
            if run.step % 3 == 0:
                checkpoints.save(run.contents(), run.step)
    return run


@pytest.mark.slow
def test_killed_at_any_moment_a_run_ends_as_if_left_alone(tmp_path):
    program = "import sys; from tests.train.checkpoint.test_kill import go_on; go_on(sys.argv[1], int(sys.argv[2]))"
    seen = set()
    for step in (10, 40, 70, 100):
        child = subprocess.run([sys.executable, "-c", program, tmp_path, str(step)], timeout=PATIENCE)
        assert child.returncode == -signal.SIGKILL
        seen.add(Checkpoints(tmp_path).latest())
    assert len(seen) == 4
    resumed, alone = go_on(str(tmp_path)), make()
    alone.train(STEPS)
    assert resumed.step == alone.step == STEPS
    assert differences(alone, resumed) == []
    assert list(tmp_path.glob("*.part")) == []
