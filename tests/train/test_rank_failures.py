"""Ranks that raise, die, stall or are told to stop, as real processes: all ranks end, and the failed one is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE, wait_for
from tests.train.started import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.train.one_rank"
pytestmark = pytest.mark.slow


class Started:
    """So many ranks of the program, without a launcher."""

    def __init__(self, world: int, *words: object) -> None:
        shared = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-m", PROGRAM, *map(str, words)],
                cwd=ROOT,
                env={**os.environ, **{name: str(value) for name, value in {**shared, "RANK": rank}.items()}},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]

    def ended(self, but: int | None = None) -> dict[int, tuple[int, str]]:
        """The exit codes and outputs of all ranks but one."""
        found = {}
        try:
            for rank, each in enumerate(self.ranks):
                if rank != but:
                    out, _ = each.communicate(timeout=PATIENCE)
                    found[rank] = each.returncode, out
        finally:
            for each in self.ranks:
                each.kill()
                each.communicate()
        return found


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_killed_ends_all_within_seconds(tmp_path, rank):
    started = Started(3, tmp_path, "kill", rank)
    found = started.ended(but=rank)
    for code, out in found.values():
        assert code != 0
        assert re.search(rf"rank {rank} died or left: its connection broke, last seen at step \d+", out), out
        assert "go on with fit(resume='auto')" in out or "this rank ends too" in out


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_ends_all_after_the_timeout(tmp_path, rank):
    started = Started(3, tmp_path, "stop", rank, 15)
    found = started.ended(but=rank)
    for code, out in found.values():
        assert code != 0
        assert re.search(rf"rank {rank} stalled for 15 s, last seen at step \d+", out), out


def test_a_rank_that_hangs_in_its_own_code_ends_with_all_others(tmp_path):
    found = Started(2, tmp_path, "sleep", 1, 15).ended()
    assert all(code != 0 for code, _ in found.values())
    assert all("rank 1 stalled for 15 s, last seen at step 20" in out for _, out in found.values()), found


def test_an_error_of_one_rank_is_told_by_all(tmp_path):
    found = Started(2, tmp_path, "raise", 1).ended()
    assert "rank 1: KeyError: 'nobody knows'" in found[1][1]
    assert "rank 0: RankFailure: rank 1 failed at step 20: KeyError: 'nobody knows'" in found[0][1]
    assert found[0][0] == found[1][0] == 1


def test_rows_that_one_rank_cannot_read_end_all_in_the_middle_of_a_lookup(tmp_path):
    found = Started(2, tmp_path, "lookup", 1).ended()
    assert "rank 1: OSError: [Errno 5] rows could not be read" in found[1][1]
    assert "rank 1 failed at step 21: OSError: [Errno 5] rows could not be read" in found[0][1]
    assert found[0][0] == found[1][0] == 1
    run = tmp_path / "run" / "checkpoints"
    assert {path.name for path in run.glob("step-*")} == {f"step-{step:09}" for step in (10, 15, 20)}


def test_a_loss_that_is_not_finite_on_one_rank_stops_all(tmp_path):
    found = Started(2, tmp_path, "nan", 1).ended()
    assert "rank 1: FloatingPointError: step 20: the loss is nan" in found[1][1]
    assert "rank 0: RankFailure: rank 1 failed at step 20: LossNotFinite: the loss is nan" in found[0][1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_saves_all_at_one_step(tmp_path, rank):
    started = Started(2, tmp_path, "wait", rank)
    wait_for((tmp_path / "waits").exists)
    os.kill(started.ranks[rank].pid, signal.SIGTERM)
    found = started.ended()
    assert [code for code, _ in found.values()] == [143, 143], found
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert not any(".part" in path.name for path in saved)
    assert int(saved[-1].name[5:14]) >= 20


def test_torchrun_starts_a_run_again_from_its_last_checkpoint(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "-m", PROGRAM, str(tmp_path), "kill", "1"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done at step 100, row 4000" in done.stdout
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(records) == 100 // 5 + 1
