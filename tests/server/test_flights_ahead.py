"""Lookups go ahead of their step, and never see less than the staleness lets them miss, however late things come."""

from __future__ import annotations

import pytest
import torch

import hybridrec as hr
from hybridrec.embedding import Constant
from hybridrec.server.client import Servers
from tests.parallel.pool import pool
from tests.server.counting_rows import IDS, count
from tests.server.direct import delayed, direct, shards
from tests.server.processes import ServerProcess

STEPS = 25


def check(found: dict, staleness: int, trainers: int = 1) -> None:
    for step, (least, most) in enumerate(found["seen"]):
        assert trainers * max(0, step - staleness) <= least, f"step {step} has seen {least} updates"
        assert most <= trainers * (step + (staleness if trainers > 1 else 0))
    assert torch.equal(found["final"], torch.full((len(IDS),), float(trainers * STEPS))), "lost or doubled"


@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_the_bound_holds_under_random_delays(staleness, seed):
    servers = direct(3)
    found = count(delayed(servers, 0.004, seed), staleness, STEPS, ahead=max(1, staleness))
    check(found, staleness)
    told = [link._shard.stats()["staleness"] for link in servers.links]
    assert all(len(each) == staleness + 1 for each in told)
    assert all(sum(each) == STEPS for each in told)
    assert staleness == 0 or any(sum(each[1:]) for each in told), "nothing was ever behind"


def test_lookups_are_in_flight_up_to_the_staleness():
    held = shards(1)
    servers = Servers.direct(held)
    found = count(servers, 3, STEPS, ahead=3)
    check(found, 3)
    assert held[0].stats()["staleness"][3] > 0, "some have gone three steps ahead"


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_the_bound_holds_for_two_trainers_under_random_delays(staleness):
    with ServerProcess("--of", "2") as first, ServerProcess("--number", "1", "--of", "2") as second:
        given = {"addresses": [first.address, second.address], "staleness": staleness}
        found = pool(2).run("tests.server.counting_rows:count_on_ranks", **given, steps=STEPS, delay=0.004)
    for each in found:
        check(each, staleness, trainers=2)


def counters(staleness: int) -> tuple:
    """Rows that begin at 0, and their optimizer."""
    emb = hr.EmbeddingCollection([hr.Table("n", dim=1, capacity=100, init=Constant(0.0))])
    emb = hr.shard(emb, servers=direct(2), staleness=staleness)
    return emb, hr.optim.SGD(emb, lr=1.0)


def test_a_block_that_was_sent_too_early_is_asked_for_again():
    emb, rows = counters(staleness=1)
    early, late = (hr.IdBlock.from_lists({"n": [1, 2]}) for _ in range(2))
    emb.prepare(early)
    for _ in range(3):
        emb(late).flat.sum().backward()
        rows.step()
    assert emb(early).flat.tolist() == [[-3.0], [-3.0]]


def test_what_was_prepared_may_be_forgotten():
    emb, rows = counters(staleness=2)
    blocks = [hr.IdBlock.from_lists({"n": [1, 2]}) for _ in range(4)]
    for block in blocks:
        emb.prepare(block)
    emb.forget()
    for block in reversed(blocks):
        emb(block).flat.sum().backward()
        rows.step()
    assert emb.lookup("n", [1, 2]).tolist() == [[-4.0], [-4.0]]
