"""Whole runs through `hybridrec launch`: what is killed on the way does not change what comes out."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from hybridrec.launch.child import Output
from hybridrec.launch.config import LaunchConfig
from hybridrec.launch.roles import RunRoles
from hybridrec.launch.supervisor import Limits, Supervisor
from hybridrec.train.checkpoint import Checkpoints
from tests.server.processes import PYTHON, ROOT

pytestmark = pytest.mark.slow
LAUNCH = (sys.executable, "-m", "hybridrec", "launch")


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clicks") / "clicks.parquet"
    sizes = ["--rows", "40k", "--ids", "3", "--dense", "2", "--histories", "1", "--vocabulary", "3000"]
    subprocess.run([sys.executable, "-m", "hybridrec", "synth", str(path), *sizes], cwd=ROOT, env=PYTHON, check=True)
    return path


def config(clicks: Path, out: Path, trainers: int = 1, **servers: object) -> dict:
    return {
        "out": str(out),
        "data": {"path": [str(clicks)], "label": ["click"], "batch_size": 128},
        "model": {"name": "dlrm", "dim": 4},
        "train": {"seed": 3, "steps": 200, "save_every": 20, "progress": "none"},
        "servers": {"count": 2, **servers},
        "trainers": {"count": trainers},
    }


def written(values: dict, folder: Path) -> Path:
    """The same as a file: TOML has no nulls and no nesting here, so each value is as JSON has it."""
    lines = [f'out = "{values["out"]}"']
    for section, inner in values.items():
        if isinstance(inner, dict):
            lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in inner.items())]
    (folder / "run.toml").write_text("\n".join(lines))
    return folder / "run.toml"


def tables(out: Path, folder: Path) -> dict[str, np.ndarray]:
    """The rows of the last checkpoint by table, in order of id: id, numbers of the row and of its state."""
    import pyarrow.ipc as ipc

    command = [sys.executable, "-m", "hybridrec", "checkpoint", "tables", str(newest(out)), "--out", str(folder)]
    subprocess.run(command, cwd=ROOT, env=PYTHON, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for file in folder.glob("*.arrow"):
        table = ipc.open_file(file).read_all().sort_by("id")
        parts = [
            np.asarray(table[name].to_pylist(), np.float64).reshape(table.num_rows, -1) for name in table.column_names
        ]
        found[file.stem] = np.concatenate(parts, axis=1)
    return found


@pytest.fixture(scope="module")
def calm(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The rows of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("calm")
    command = [*LAUNCH, str(written(config(clicks, folder / "run"), folder))]
    subprocess.run(command, cwd=ROOT, env=PYTHON, check=True)
    return tables(folder / "run", folder / "tables")


def newest(out: Path) -> Path | None:
    return Checkpoints(out / "checkpoints").latest()


def killed(values: dict, private: Path, most: int) -> tuple[int, int]:
    """The exit code of a run, and how many of its processes were killed: `most`, or those before it was over."""
    made, out, dice = LaunchConfig.of(values), Path(values["out"]), random.Random(5)
    private.mkdir(mode=0o700)
    roles = RunRoles(made, out, private, "the same command")
    last = lambda: None if (found := newest(out)) is None else str(found)  # noqa: E731
    supervisor = Supervisor(roles, Limits(1000, 1000), Output(9), last)

    kills, over = [], threading.Event()

    def kill() -> None:
        seen = None
        while len(kills) < most and not over.wait(0.05):
            if newest(out) == seen and len(kills) % 2 == 0:  # every other one may be killed while it starts
                continue
            seen = newest(out)
            time.sleep(dice.uniform(0.0, 1.0))
            role = dice.choice(("server", "server", "trainer"))
            there = [pid for name, pid in supervisor.processes().items() if name.startswith(role)]
            with suppress(IndexError, ProcessLookupError):  # there is none, or it has ended since
                os.kill(chosen := dice.choice(there), signal.SIGKILL)
                kills.append(chosen)

    killer = threading.Thread(target=kill)
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        killer.start()
        return supervisor.run(), len(kills)
    finally:
        os.chdir(before)
        over.set()
        killer.join()


@pytest.mark.parametrize("memory", [False, True])
def test_a_run_whose_servers_and_trainers_are_killed_ends_with_the_rows_of_one_that_was_left_alone(
    clicks: Path, calm: dict[str, np.ndarray], tmp_path: Path, memory: bool
):
    code, kills = killed(config(clicks, tmp_path / "wild", memory=memory), tmp_path / "private", 4)
    assert code == 0
    assert kills >= 2
    wanted, found = calm, tables(tmp_path / "wild", tmp_path / "tables")
    assert wanted.keys() == found.keys()
    assert len(wanted) == 4
    for name, rows in wanted.items():
        assert np.array_equal(rows, found[name]), name


def test_ctrl_c_saves_and_the_same_command_with_resume_goes_on(clicks: Path, tmp_path: Path):
    values = config(clicks, tmp_path / "run", trainers=2, staleness=2)
    values["train"] |= {"steps": 150, "progress": "lines"}
    del values["train"]["save_every"]
    command = [*LAUNCH, str(written(values, tmp_path))]
    with subprocess.Popen(command, cwd=ROOT, env=PYTHON, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        told = list(takewhile(lambda line: "train  step" not in line, run.stderr))
        run.send_signal(signal.SIGINT)  # once: a second one ends it as it is
        told += run.stderr
    assert run.returncode == 130
    assert any(f"is saved; go on with hybridrec launch {tmp_path / 'run.toml'} --resume" in line for line in told)
    assert newest(tmp_path / "run") is not None
    again = subprocess.run(
        [*command, "--resume", "--json"], cwd=ROOT, env=PYTHON, check=True, capture_output=True, text=True
    )
    assert json.loads(again.stdout)["steps"] == 150


def test_nobody_learns_the_token(clicks: Path, tmp_path: Path):
    values = config(clicks, tmp_path / "run")
    values["train"] = {"steps": 60, "progress": "lines"}
    command, environment = [*LAUNCH, str(written(values, tmp_path))], {**PYTHON, "TMPDIR": str(tmp_path)}
    to = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=to, stderr=subprocess.STDOUT) as run:
        assert run.stdout is not None
        told = run.stdout.readline()
        (file,) = tmp_path.glob("hybridrec-launch-*/token")
        token, folder = file.read_text(), file.parent.stat()
        told += run.stdout.read()
    assert run.returncode == 0
    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert token not in told
    assert not file.exists()
    written_files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written_files) > 5
    assert not any(token.encode() in path.read_bytes() for path in written_files)


def test_what_is_wrong_in_the_file_is_told_before_anything_starts(tmp_path: Path):
    (tmp_path / "run.toml").write_text('out = "x"\n[servers]\nstale = 4\n')
    run = subprocess.run(
        [*LAUNCH, str(tmp_path / "run.toml")], cwd=tmp_path, env=PYTHON, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert run.stderr.startswith("error: servers has no option 'stale'; valid are count")
    assert not (tmp_path / "x").exists()
