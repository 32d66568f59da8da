"""Checkpoints of a run on several ranks that are real processes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.train.checkpoint import Checkpoints, Contents, load, read_manifest, verify
from tests.parallel.pool import pool
from tests.patience import PATIENCE
from tests.train.checkpoint.sharded_run import PIN, Run
from tests.train.started import free_port

JOBS = "tests.train.checkpoint.sharded_run"
NAMES = "emb.item", "emb.user", "emb.page", "emb.tag", "word"


def start(world: int, *words: object, program: str = JOBS) -> list[subprocess.Popen[str]]:
    """The program on so many ranks."""
    found, port = [], free_port()
    for rank in range(world):
        told = {
            "RANK": rank,
            "WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": 1,
        }
        command = [sys.executable, "-m", program, *map(str, words)]
        env = os.environ | {name: str(value) for name, value in told.items()}
        found.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, list[dict]]:
    """A checkpoint that two ranks wrote while they went on, and what they say."""
    folder = tmp_path_factory.mktemp("two")
    said = pool(2).run(f"{JOBS}:save_and_resume", folder=str(folder))
    path = Checkpoints(folder).latest()
    assert path is not None
    return path, said


def test_a_run_on_two_ranks_is_saved_while_it_trains_and_goes_on_from_there(two):
    path, said = two
    for each in said:
        assert (each["complete"], each["same"], each["goes on"]) == (True, True, True)
    assert verify(path) == []
    assert {part.rank for part in read_manifest(path).tables["emb.item"].parts} == {0, 1}


def joined(ranks: list[dict], name: str) -> list[tuple[int, list[float]]]:
    """The rows of all ranks by id; columns of the same row side by side."""
    rows: dict[int, list[float]] = {}
    for rank in ranks:
        for id, row in zip(*rank[name][:2], strict=True):
            rows[id] = rows.get(id, []) + row
    return sorted(rows.items())


def of_rows(ranks: list[dict], name: str) -> dict[int, float]:
    """The one number of state that each row of a table has, which all ranks with columns of it must have alike."""
    found: dict[int, float] = {}
    for rank in ranks:
        ids, _, state = rank[name][:3]
        for id, value in zip(ids, state["sum"], strict=True):
            assert found.setdefault(id, value) == value, f"ranks have different state of row {id}"
    return found


def test_one_process_loads_what_two_have_saved(two):
    path, said = two
    run = Run()
    assert run.resume(path).complete
    assert run.step == 3
    for name in NAMES:
        rows = joined([run.held()], name)
        assert rows == joined([each["then"] for each in said], name)
        assert rows, "a table without rows would prove nothing"
    for name in ("emb.item", "emb.tag"):
        sums = of_rows([run.held()], name)
        assert sums == of_rows([each["then"] for each in said], name)
        assert any(sums.values())


@pytest.mark.parametrize(
    "pin", [{"item": "column", "tag": "row", "page": "row", "user": "table", "word": "replicated"}]
)
def test_three_ranks_with_another_plan_load_what_two_have_saved(two, pin):
    path, said = two
    held = pool(3).run(f"{JOBS}:resume", path=str(path), pin=pin)
    for name in NAMES[:-1]:
        assert joined(held, name) == joined([each["then"] for each in said], name)
    for name in ("emb.item", "emb.tag"):  # by rows then and by columns now, and the other way round
        assert of_rows(held, name) == of_rows([each["then"] for each in said], name)
    for rank in held:
        assert joined([rank], "word") == joined([each["then"] for each in said], "word"), "all of it, on all ranks"
        assert rank["weight"] == said[0]["then"]["weight"], "layers are on all ranks"
        assert rank["steps"] == said[0]["then"]["steps"]


def test_a_file_that_is_damaged_for_one_rank_stops_all_before_anything_changes(two, tmp_path):
    path = shutil.copytree(two[0], tmp_path / "step-000000003")
    victim = path / "tables" / "emb.item@rows-1-of-2.arrow"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    first, second = pool(2).run(f"{JOBS}:refusal", path=str(path), pin=PIN)
    assert "nothing was loaded, since rank 1 could not: checkpoint" in first["error"]
    assert "emb.item@rows-1-of-2.arrow: bytes" in second["error"]
    assert first["same"]
    assert second["same"]


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_that_one_rank_cannot_read_are_an_error_on_all(two, rank):
    said = pool(2).run(f"{JOBS}:broken_off", path=str(two[0]), rank=rank)
    assert said[rank] == "OSError: the disk is gone"
    assert said[1 - rank] == (
        "CheckpointError: the model is loaded in part, and must be loaded again before it is used, since "
        f"rank {rank} could not: the disk is gone"
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_it_writes_leaves_no_half(victim, tmp_path):
    moments = random.Random(victim)
    children = start(2, tmp_path)
    try:
        for _ in range(4):
            assert children[0].stdout is not None
            children[0].stdout.readline()
        time.sleep(0.3 * moments.random())
        children[victim].kill()
        children[1 - victim].communicate(timeout=PATIENCE)
        assert children[1 - victim].returncode != 0
    finally:
        for child in children:
            child.kill()
            child.communicate()
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert verify(latest) == []
    emb = EmbeddingCollection([Table("item", 16, rows=400_000)])
    load(latest, Contents(emb))
    assert (emb["item"].weight == read_manifest(latest).step).all(), "rows of one step only, of both ranks"
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Contents(emb), 5000, wait=True)
    assert list(tmp_path.glob("*.part")) == []
