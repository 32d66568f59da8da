"""Messages of ranks on one host, through memory that they share; csrc/tests/host_memory_test.cpp has its inner life."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.host_memory import HostMemory, host_memory
from hybridrec.parallel.ranks import Ranks
from tests.parallel import standard
from tests.parallel.equality import compare
from tests.parallel.jobs.training import train_alone
from tests.parallel.pool import RankFailed, pool

JOBS = "tests.parallel.jobs.exchanging"


@pytest.mark.parametrize("world", [2, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_messages_of_any_size_come_through_two_channels_at_once(world: int) -> None:
    for found in pool(world).run(f"{JOBS}:rounds", shared=True, times=100):
        assert found["shared"]
        assert found["wrong"] == []
        assert found["calls"] == {"ids": 100, "vectors": 100}


def test_traffic_is_counted_as_through_gloo() -> None:
    shared, gloo = (pool(2).run(f"{JOBS}:rounds", shared=shared, times=12) for shared in (True, False))
    for one, other in zip(shared, gloo, strict=True):
        assert one["shared"]
        assert not other["shared"]
        assert other["wrong"] == []
        assert one["calls"] == other["calls"]
        assert one["bytes"] == other["bytes"]
        assert one["bytes"]["vectors"] > 0


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_rank_sends_to_itself_stays_where_it_is_or_is_copied_and_never_counts(shared: bool) -> None:
    for rank, found in enumerate(pool(3).run(f"{JOBS}:in_parts", shared=shared)):
        sent = 4 * sum(3 + 2 * rank + other for other in range(3) if other != rank)
        assert found == {"right": {"vectors": True, "gradients": True}, "bytes": {"vectors": sent, "gradients": sent}}


@pytest.mark.parametrize("world", [2, 3])
def test_few_numbers_add_up_alike_on_all_ranks_and_many_are_for_torch(world: int) -> None:
    of_ranks = pool(world).run(f"{JOBS}:sums", shared=True)
    for n, found in enumerate(list(zip(*of_ranks, strict=True))[:-1]):
        parts = [torch.rand(n, generator=torch.Generator().manual_seed(rank + 10 * n)) for rank in range(world)]
        torch.testing.assert_close(found[0], torch.stack(parts).sum(0))
        assert all(torch.equal(each, found[0]) for each in found)
    assert [found[-1] for found in of_ranks] == [None] * world
    assert pool(world).run(f"{JOBS}:sums", shared=False) == [[None] * 21] * world


class Silent:
    """Memory of ranks, one of which never answers; what the others say afterwards is out of step."""

    def __init__(self) -> None:
        self.posted = 0

    def post(self, channel: int, address: int, sizes: list[int]) -> int:
        self.posted += 1
        return self.posted

    def ready(self, channel: int, number: int) -> bool:
        return False

    def take(self, channel: int, number: int, address: int, sizes: list[int]) -> None:
        raise RuntimeError("timed out waiting" if number == 1 else "sent 144 bytes where 32 are expected")


def test_after_a_message_that_never_came_all_say_so_and_nothing_is_sent() -> None:
    silent = Silent()
    memory, numbers = HostMemory(silent, 0), torch.zeros(2)
    first, second = (memory.send(each, numbers, [0, 2], numbers, [0, 2], False) for each in ("ids", "vectors"))
    for late in (first, second, first):
        with pytest.raises(RuntimeError, match="timed out waiting"):
            late.wait()
    with pytest.raises(RuntimeError, match="timed out waiting"):
        memory.send("ids", numbers, [0, 2], numbers, [0, 2], False)
    assert silent.posted == 2


def test_messages_that_wait_for_a_step_do_not_hold_up_those_after_them() -> None:
    assert pool(2).run(f"{JOBS}:late", times=60) == [[True] * 60] * 2


def test_memory_of_messages_that_nobody_asks_for_is_used_again() -> None:
    few, many = (pool(2).run(f"{JOBS}:dropped", times=times) for times in (4, 100))
    assert max(many) <= 2 * max(few)


def test_lines_go_to_their_ranks() -> None:
    found = pool(3).run(f"{JOBS}:lines")
    for rank, got in enumerate(found):
        assert got.tolist() == [[100 * source + 3 * rank + n for n in range(3)] for source in range(3)]


@pytest.mark.parametrize(
    ("wanted", "shared"), [([None, None], True), ([True, None], True), ([None, False], False), ([False, False], False)]
)
def test_memory_is_shared_where_no_rank_refuses(wanted: list[bool | None], shared: bool) -> None:
    assert pool(2).run(f"{JOBS}:chosen", wanted=wanted) == [{"shared": shared}] * 2


def test_memory_that_must_be_shared_and_cannot_is_an_error_on_all_ranks() -> None:
    for found in pool(2).run(f"{JOBS}:chosen", wanted=[True, False]):
        assert "ranks 0, 1 cannot share memory with the others: another rank has none" in found["error"]


class Elsewhere(Ranks):
    """Ranks of which the second is on another host, or in another container."""

    def __init__(self, other: list[Any] | None) -> None:
        super().__init__(0, 2)
        self.other = other

    def all_told(self, value: Any) -> list[Any]:
        if len(value) == 2:
            return [value, value]
        host, process, file, token = value
        return [value, [a or b for a, b in zip(self.other, (host, process, file, token), strict=True)]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (["elsewhere", None, None, None], "several hosts"),
        ([None, None, 10**6, None], "cannot open the memory of rank 1"),
        ([None, None, None, "7"], "something else"),
        ([None, 2**22 + 1, None, None], "cannot watch rank 1"),
    ],
)
def test_ranks_that_cannot_reach_each_others_memory_go_through_gloo(other: list[Any], why: str) -> None:
    assert host_memory(Elsewhere(other), None) is None
    with pytest.raises(RuntimeError, match=why):
        host_memory(Elsewhere(other), True)


def test_one_rank_shares_nothing() -> None:
    exchange = Exchange(Ranks(0, 1))
    assert not exchange.shared
    assert exchange.vectors(torch.ones(3), [3], [3]).wait().tolist() == [1, 1, 1]


@pytest.mark.parametrize("shared", [True, False])
def test_training_equals_that_of_one_process(shared: bool) -> None:
    case = standard.case(2, "mixed")
    compare(case, pool(2).run(f"{JOBS}:trained", case=case.to_json(), shared=shared), train_alone(case))


def test_training_is_the_same_bit_for_bit_as_through_gloo() -> None:
    case = standard.case(2, "mixed")
    one, other = (pool(2).run(f"{JOBS}:trained", case=case.to_json(), shared=shared) for shared in (True, False))
    for mine, theirs in zip(one, other, strict=True):
        for name, weight in theirs["weights"].items():
            assert torch.equal(mine["weights"][name], weight), name
        for name, store in theirs["final"].items():
            assert torch.equal(mine["final"][name]["rows"], store["rows"]), name


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_named_at_once(rank: int) -> None:
    with pytest.raises(RankFailed, match=f"connection closed by peer: rank {rank} left or ended"):
        pool(2).run(f"{JOBS}:killed", rank=rank)
