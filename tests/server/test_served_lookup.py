"""Several trainers with real servers: without staleness they end where one process does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import hybridrec as hr
from tests.parallel import standard
from tests.parallel.equality import check, compare, compare_stores
from tests.parallel.jobs import unfed
from tests.parallel.jobs.training import held, train_alone
from tests.parallel.pool import RankFailed, pool
from tests.parallel.training_case import Case, Spec
from tests.server.direct import direct
from tests.server.processes import ServerProcess

TRAIN = "tests.parallel.jobs.training:train"
TABLES: list[Spec] = [
    {
        "name": "user",
        "dim": 4,
        "capacity": 200,
        "features": ["user", "friends", "seen"],
        "combiner": {"user": "sum", "friends": "mean", "seen": "none"},
        "where": "server",
    },
    {"name": "ad", "dim": 4, "capacity": 90, "combiner": "max", "eviction": "lfu", "where": "server"},
    {"name": "place", "dim": 7, "capacity": 90, "combiner": "sqrtn", "where": "server"},
    {"name": "rare", "dim": 3, "capacity": 90, "admission": ["probability", 0.5], "where": "server"},
    {
        "name": "shop",
        "dim": 4,
        "rows": 30,
        "features": ["shop", "visited"],
        "combiner": {"shop": "mean", "visited": "none"},
        "out_of_range": "hash",
        "where": "server",
    },
    {"name": "word", "dim": 5, "hashes": [2, 10], "where": "server"},
    {"name": "page", "dim": 2, "rows": 9, "out_of_range": "zero", "combiner": "max", "where": "server"},
]
BESIDE: list[Spec] = [
    {"name": "item", "dim": 8, "rows": 12, "features": ["item", "liked"], "combiner": "mean"},
    {"name": "few", "dim": 3, "rows": 2, "combiner": "max"},
    {"name": "city", "dim": 4, "capacity": 200, "where": "device"},
]


class Started:
    """Real servers, so many as are asked for, until the end of the module."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: dict[int, list[str]] = {}

    def __getitem__(self, of: int) -> list[str]:
        if of not in self._made:
            with ThreadPoolExecutor(of) as starting:
                made = list(starting.map(lambda n: ServerProcess("--number", str(n), "--of", str(of)), range(of)))
            self._made[of] = [self._stack.enter_context(server).address for server in made]
        return self._made[of]


@pytest.fixture(scope="module")
def servers() -> Iterator[Started]:
    """Addresses by the number of servers."""
    with ExitStack() as stack:
        yield Started(stack)


def served(world: int, servers: list[str], **more: Any) -> Case:
    options = {"tables": TABLES, "optimizer": "Adagrad", "options": {"lr": 0.2, "eps": 1e-3}, **more}
    hot = {"user": 1, "ad": 2}
    return Case(**{"sizes": standard.sizes(world), "hot": hot, "servers": servers, **options})


FAST = [(2, 2), (2, 3)]  # servers and trainers
ALL = [(of, world) for of in (1, 2, 5) for world in (1, 2, 3)]


@pytest.mark.parametrize(
    ("of", "world"), [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in ALL]
)
def test_trainers_end_where_one_process_does(of: int, world: int, servers: Started) -> None:
    check(served(world, servers[of]))


@pytest.mark.parametrize("world", [1, 2])
def test_tables_on_servers_beside_tables_on_ranks_and_here(world: int, servers: Started) -> None:
    check(served(world, servers[2], tables=[*TABLES[:2], *BESIDE, *TABLES[2:]], weighted=True))


def test_ids_may_go_ahead_and_weights_may_be_learned(servers: Started) -> None:
    check(served(2, servers[2], ahead=True, learned=True, lookups=2))


@pytest.mark.slow
def test_steps_of_several_batches_are_one(servers: Started) -> None:
    sizes = [[micro, micro] for step in standard.sizes(2) for micro in step]
    check(served(2, servers[2], sizes=sizes, optimizer="SGD", options={"lr": 0.5}))


@pytest.mark.slow
def test_ranks_without_ids_take_part(servers: Started) -> None:
    check(served(3, servers[2], idless=[1], optimizer="Adam", options={"lr": 0.05, "eps": 1e-3}))


@pytest.mark.slow
def test_vectors_may_travel_in_halves(servers: Started) -> None:
    case = served(2, servers[2], wire={"forward": "bfloat16", "gradient": "float16"})
    found = pool(2).run(TRAIN, case=case.to_json())
    compare(case, found, train_alone(case), close=0.05)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_with_staleness_trainers_go_on_and_all_layers_stay_equal(clip: float | None, servers: Started) -> None:
    found = pool(2).run(TRAIN, case=served(2, servers[2], staleness=3, ahead=True, clip=clip).to_json())
    for name, weight in found[0]["weights"].items():
        assert weight.equal(found[1]["weights"][name])
    assert found[0]["counts"] == found[1]["counts"]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_gradients_are_clipped_by_the_norm_of_their_sum(world: int, servers: Started) -> None:
    check(served(world, servers[2], tables=[*TABLES, *BESIDE], clip=0.05))


@pytest.mark.slow
def test_trainers_that_disagree_on_staleness_are_told(servers: Started) -> None:
    with pytest.raises(RankFailed, match=r"ranks disagree on servers: rank 0 has \[2, 0\], rank 1 has \[2, 1\]"):
        pool(2).run("tests.server.disagreement:shard", addresses=servers[2])


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_that_only_an_unused_output_has_asked_for_keep_still(dynamic: bool) -> None:
    emb = hr.EmbeddingCollection([replace(unfed.table(dynamic), where="server")], seed=1)
    model: Any = hr.shard(emb, servers=direct(2), staleness=0)
    unfed.train(model, range(2), False)
    compare_stores([{"t0": held(model.module["t0"])}], unfed.trained_alone(dynamic), 1e-5, "rows")
