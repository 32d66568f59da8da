"""Jobs that send messages of any size through an exchange."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import torch
from torch import Tensor

from hybridrec.parallel.exchange import Arriving, Exchange
from hybridrec.parallel.ranks import Ranks, ranks
from tests.parallel.jobs.training import train

DTYPES = (torch.float32, torch.float16, torch.int64)


def here() -> Ranks:
    found = ranks()
    assert found is not None
    return found


def lines_of(source: int, target: int, seed: int) -> int:
    """Lines from one rank to another: none, few, or many."""
    draw = random.Random(f"{source} {target} {seed}")
    return draw.choice(
        [0, 0, 1, draw.randrange(50), draw.randrange(5000), draw.randrange(100_000) if seed % 5 == 0 else 3]
    )


def begun(exchange: Exchange, channel: str, seed: int) -> tuple[Arriving, Tensor]:
    """A message on its way, and what must come of it."""
    rank, every = exchange.rank, range(exchange.world)
    dtype = DTYPES[seed % 3]
    to, of = [lines_of(rank, other, seed) for other in every], [lines_of(other, rank, seed) for other in every]

    def part(source: int, target: int, lines: int) -> Tensor:
        return (torch.arange(lines) % 100 + 10 * source + target + seed % 7).to(dtype)

    message = torch.cat([part(rank, other, lines) for other, lines in zip(every, to, strict=True)])
    wanted = torch.cat([part(other, rank, lines) for other, lines in zip(every, of, strict=True)])
    arriving = exchange.ids(message, to, of) if channel == "ids" else exchange.vectors(message, to, of)
    return arriving, wanted


def rounds(shared: bool, times: int) -> dict[str, Any]:
    """Messages on both channels, each from a thread of its own; rounds in which something else came."""
    exchange, wrong = Exchange(here(), shared), []

    def run(channel: str, first: int) -> None:
        for seed in range(first, first + times):
            arriving, wanted = begun(exchange, channel, seed)
            if not torch.equal(arriving.wait(), wanted):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=each) for each in (("ids", 0), ("vectors", 10_000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    traffic = exchange.traffic
    return {"shared": exchange.shared, "wrong": wrong, "calls": dict(traffic.calls), "bytes": dict(traffic.bytes)}


def in_parts(shared: bool) -> dict[str, Any]:
    """Vectors that are written where they are sent from, and gradients that are read part by part."""
    exchange = Exchange(here(), shared)
    rank, every = exchange.rank, range(exchange.world)
    to, of = [3 + 2 * rank + other for other in every], [3 + 2 * other + rank for other in every]
    outgoing = exchange.outgoing(to, of)
    for other, part in zip(every, outgoing.parts, strict=True):
        part[:] = 10 * rank + other
    came = exchange.posted(outgoing, of).wait()
    message = torch.cat([torch.full((n,), 10.0 * rank + other) for other, n in zip(every, to, strict=True)])
    arriving = exchange.gradients(message, to, of)
    wanted = [torch.full((n,), 10.0 * other + rank) for other, n in zip(every, of, strict=True)]
    parts = [torch.equal(part, want) for part, want in zip(arriving.parts(), wanted, strict=True)]
    right = {"vectors": torch.equal(came, torch.cat(wanted)), "gradients": all(parts)}
    return {"right": right, "bytes": dict(exchange.traffic.bytes)}


def late(times: int) -> list[bool]:
    """Gradients that nobody asks for while vectors come and go, as when several batches make one step."""
    exchange = Exchange(here(), True)
    waiting = []
    for seed in range(times):
        arriving, wanted = begun(exchange, "vectors", 2 * seed)
        assert torch.equal(arriving.wait(), wanted)
        waiting.append(begun(exchange, "vectors", 2 * seed + 1))
    return [torch.equal(arriving.wait(), wanted) for arriving, wanted in waiting]


def dropped(times: int) -> int:
    """Bytes that a rank keeps after messages that nobody ever asks for."""
    exchange = Exchange(here(), True)
    message, parts = torch.zeros(exchange.world * 50_000), [50_000] * exchange.world
    for _ in range(times):
        exchange.vectors(message, parts, parts)
        exchange.vectors(message, parts, parts).wait()
    assert exchange._memory is not None
    return exchange._memory._memory.held


def lines() -> Tensor:
    """Sizes go in lines."""
    exchange = Exchange(here(), True)
    return exchange.sizes(torch.arange(exchange.world * 3).view(exchange.world, 3) + 100 * exchange.rank)


def chosen(wanted: list[bool | None]) -> dict[str, Any]:
    """What each rank gets that asks for `wanted[rank]`."""
    found = here()
    try:
        return {"shared": Exchange(found, wanted[found.rank]).shared}
    except RuntimeError as error:
        return {"error": str(error)}


def killed(rank: int) -> dict[str, Any]:
    """One rank dies while the others wait for its message; what they are told."""
    found = here()
    exchange, parts = Exchange(found, True), [1] * found.world
    exchange.vectors(torch.zeros(found.world), parts, parts).wait()
    pids = found.all_told(os.getpid())
    if found.rank == rank:
        time.sleep(600)
    arriving = exchange.vectors(torch.zeros(found.world), parts, parts)
    if found.rank == (rank + 1) % found.world:
        os.kill(pids[rank], signal.SIGKILL)
    arriving.wait()
    return {}


def trained(case: dict[str, Any], shared: bool) -> Any:
    """A training case through shared memory, or through Gloo."""
    found = here()
    before, found.shared = found.shared, shared
    try:
        return train(case)
    finally:
        found.shared = before
