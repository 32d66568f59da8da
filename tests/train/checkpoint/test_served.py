"""Tables on servers: every rank saves and loads the rows of its servers, whatever the number of both."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import hybridrec as hr
from hybridrec.embedding import Constant
from hybridrec.train.checkpoint import Checkpoints, Contents, load, read_manifest, verify
from tests.parallel.pool import pool
from tests.patience import PATIENCE
from tests.server.processes import ServerProcess
from tests.train.checkpoint import served_run
from tests.train.checkpoint.test_ranks import start

JOBS = "tests.train.checkpoint.served_run"
WAYS = [(1, 1), (1, 2), (3, 2), (2, 5)]  # trainers, servers


def servers(held: ExitStack, count: int) -> list[str]:
    """The addresses of so many new servers."""
    made = [ServerProcess("--number", str(number), "--of", str(count)) for number in range(count)]
    return [held.enter_context(each).address for each in made]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """What two trainers wrote of five servers, and what these held."""
    folder = tmp_path_factory.mktemp("served")
    with ExitStack() as held:
        found = pool(2).run(f"{JOBS}:saved", addresses=servers(held, 5), folder=str(folder))
    assert found[0] == found[1]
    latest = Checkpoints(folder).latest()
    assert latest is not None
    return latest, found[0]


def test_each_rank_writes_the_rows_of_its_servers(two):
    manifest = read_manifest(two[0])
    for name in ("item", "user", "shop"):
        parts = sorted(manifest.tables[name].parts, key=lambda part: part.rank)
        assert [(part.rank, part.share.index, part.share.count, part.share.servers) for part in parts] == [
            (0, 0, 2, 5),
            (1, 1, 2, 5),
        ]
        assert all(part.rows for part in parts)
    assert verify(two[0]) == []


@pytest.mark.parametrize(("trainers", "count"), WAYS)
def test_any_number_of_trainers_and_servers_loads_it(two, trainers, count):
    path, held = two
    with ExitStack() as open_:
        found = pool(trainers).run(f"{JOBS}:loaded", addresses=servers(open_, count), path=str(path))
    for name in ("item", "user", "shop"):
        assert found[0][name] == held[name]
    if count == 5:
        assert found[0]["user counts"] == held["user counts"], "each server goes on with the counts that it had"


def test_a_process_without_servers_loads_it(two):
    path, held = two
    found = served_run.loaded([], str(path))
    assert {name: found[name] for name in ("item", "user", "shop")} == {
        name: held[name] for name in ("item", "user", "shop")
    }


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["trainer", "server"])
def test_a_process_that_is_killed_while_rows_are_written_leaves_no_half(victim, tmp_path):
    moments = random.Random(victim)
    first, second = (ServerProcess("--number", str(number), "--of", "2") for number in (0, 1))
    children = start(2, f"{first.address},{second.address}", tmp_path, program=JOBS)
    with first, second:
        try:
            for _ in range(4):
                assert children[0].stdout is not None
                children[0].stdout.readline()
            time.sleep(0.3 * moments.random())
            (children[1] if victim == "trainer" else second.process).kill()
            children[0].communicate(timeout=PATIENCE)
            assert children[0].returncode != 0
        finally:
            for child in children:
                child.kill()
                child.communicate()
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert verify(latest) == []
    emb = hr.EmbeddingCollection([hr.Table("n", 16, capacity=2 * served_run.IDS, init=Constant(0.0))])
    load(latest, Contents(emb))
    assert len(emb["n"]) == served_run.IDS
    assert (emb["n"].export().rows == read_manifest(latest).step).all(), "rows of one step only, of both trainers"
