"""Checkpoints of a run on several ranks that are real processes."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.train.checkpoint import Checkpoints, Contents, load, read_manifest, verify
from hybridrec.train.checkpoint.homes import homes_of
from tests.train.checkpoint.sharded_run import Run


def start(world: int, *words: object) -> list[subprocess.Popen[str]]:
    """The program on so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(world):
        told = {
            "RANK": rank,
            "WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": 1,
        }
        command = [sys.executable, "-m", "tests.train.checkpoint.sharded_run", *map(str, words)]
        env = os.environ | {name: str(value) for name, value in told.items()}
        found.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return found


def test_a_run_on_two_ranks_is_saved_while_it_trains_and_goes_on_from_there(tmp_path):
    ended = [(child, *child.communicate(timeout=60)) for child in start(2, "resume", tmp_path)]
    assert [child.returncode for child, *_ in ended] == [0, 0], ended[0][2] + ended[1][2]
    said = [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
    for each in said:
        assert (each["complete"], each["same"], each["goes on"]) == (True, True, True)
    path = Checkpoints(tmp_path).latest()
    assert path is not None
    assert verify(path) == []
    assert {part.rank for part in read_manifest(path).tables["emb.item"].parts} == {0, 1}
    check_alone(path, [each["then"] for each in said])


def check_alone(path: Path, then: list[dict]) -> None:
    """One process loads what two have saved."""
    run = Run()
    contents = run.contents()
    load(path, contents)
    assert contents.state == {"step": 3}
    held = {name: store.export() for name, store in homes_of(run.model).items()}
    for name in ("emb.item", "emb.user", "emb.page"):
        ids = [id for rank in then for id in rank[name][0]]
        rows = [row for rank in then for row in rank[name][1]]
        assert sorted(ids) == held[name].ids.tolist()
        assert [row for _, row in sorted(zip(ids, rows, strict=True))] == held[name].rows.float().tolist()
    sides = [torch.tensor(rank["emb.tag"][1]) for rank in then]
    assert torch.equal(torch.cat(sides, dim=1), held["emb.tag"].rows)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_it_writes_leaves_no_half(victim, tmp_path):
    moments = random.Random(victim)
    children = start(2, "for ever", tmp_path)
    try:
        for _ in range(4):
            assert children[0].stdout is not None
            children[0].stdout.readline()
        time.sleep(0.3 * moments.random())
        children[victim].kill()
        begun = time.monotonic()
        children[1 - victim].communicate(timeout=120)
        assert children[1 - victim].returncode != 0
        assert time.monotonic() - begun < 100
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
