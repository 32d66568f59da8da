"""Ranks: the processes that train together, and what they say to each other beside vectors."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from hybridrec.parallel import ending  # noqa: F401  (it acts when the program ends)
from hybridrec.parallel.meeting import meeting_place
from hybridrec.parallel.watch import Watch, watch_over

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 300.0  # seconds that a rank waits for another one

_current: Ranks | None = None


class Ranks:
    """This process among all that train together. Every method is a collective: all ranks call it, in the same order.

    >>> Ranks(0, 1).agree("batch_size", 512)
    """

    def __init__(self, rank: int, world: int, timeout: float = TIMEOUT, shared: bool | None = None) -> None:
        self.rank = rank
        self.world = world
        self.timeout = timeout
        self.shared = shared  # whether lookups go through shared memory: where they can, always, or never
        self.watch: Watch | None = None

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        return self._reduced(values, distributed.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over all ranks, in place."""
        return self._reduced(values, distributed.ReduceOp.MAX)

    def _reduced(self, values: Tensor, by: Any) -> Tensor:
        self._count()
        if self.world > 1:
            there = sendable(values)
            distributed.all_reduce(there, by)
            if there is not values:
                values.copy_(there)
        return values

    def gathered(self, values: Tensor) -> list[Tensor]:
        """The tensors of all ranks in their order; their first dimension may differ.

        >>> Ranks(0, 1).gathered(torch.tensor([1, 2]))
        [tensor([1, 2])]
        """
        if self.world == 1:
            return [values]
        sizes = self.sum(
            torch.zeros(self.world, dtype=torch.int64).index_fill_(0, torch.tensor(self.rank), len(values))
        )
        most = int(sizes.max())
        padded = values.new_zeros(most, *values.shape[1:])
        padded[: len(values)] = values
        return [part[:size] for part, size in zip(self.stacked(padded), sizes.tolist(), strict=True)]

    def stacked(self, values: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, as [world, ...].

        >>> Ranks(0, 1).stacked(torch.tensor([1, 2]))
        tensor([[1, 2]])
        """
        self._count()
        there = sendable(values)
        found = there.new_empty(self.world, *values.shape)
        if self.world == 1:
            found[0] = there
        else:
            distributed.all_gather(list(found.unbind()), there.contiguous())
        return found.to(values.device)

    def all_told(self, value: Any) -> list[Any]:
        """The JSON values of all ranks in their order.

        >>> Ranks(0, 1).all_told({"step": 3})
        [{'step': 3}]
        """
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gathered(text)]

    def told(self, value: Any, source: int = 0) -> Any:
        """The JSON value of one rank; what the others give does not count."""
        return self.all_told(value if self.rank == source else None)[source]

    def _count(self) -> None:
        if self.watch is not None:
            self.watch.calls += 1

    def barrier(self) -> None:
        """Until all ranks are here."""
        self.sum(torch.zeros(1))

    def agree(self, what: str, value: Any) -> None:
        """ValueError on every rank where one of them has another JSON value."""
        values = self.all_told(value)
        if all(each == values[0] for each in values):
            return
        differing = next(rank for rank, each in enumerate(values) if each != values[0])
        raise ValueError(
            f"ranks disagree on {what}: rank 0 has {_short(values[0])}, rank {differing} has "
            f"{_short(values[differing])}; start all of them with the same program, versions and data"
        )


def _short(value: Any, most: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def has_nccl() -> bool:
    """Whether processes have joined with NCCL for what is on GPUs.

    >>> has_nccl()
    False
    """
    return distributed.is_initialized() and "nccl" in distributed.get_backend_config()


def sendable(values: Tensor) -> Tensor:
    """The values where ranks can send them from: Gloo knows the memory of the host alone."""
    return values if values.device.type == "cpu" or has_nccl() else values.cpu()


def init(timeout: float = TIMEOUT, shared: bool | None = None) -> Ranks | None:
    """Join the other processes that torchrun started; on one process, do nothing. Returns the ranks, or None.

    `timeout` is how many seconds a rank waits for another before all of them end. One that dies or raises ends the
    others within seconds; see `hybridrec.parallel.watch`.

    With GPUs, the current one becomes that of LOCAL_RANK. Where all ranks have one of their own, what is on GPUs goes
    through NCCL, and else through the host.

    Lookups on CPUs go through shared memory where all ranks are on one host, and else through Gloo; `shared=False` has
    them go through Gloo always, and with `shared=True` it is an error of `hybridrec.shard` if they would.

    >>> init() is None  # without torchrun
    True
    """
    global _current
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if distributed.is_initialized():
        if "gloo" not in distributed.get_backend_config():
            raise RuntimeError(
                f"torch.distributed was joined with {distributed.get_backend_config()}, and ranks talk by Gloo beside "
                "it; leave that to hybridrec.init(), or give init_process_group the backend 'cpu:gloo,cuda:nccl'"
            )
        _current = _current or Ranks(distributed.get_rank(), distributed.get_world_size(), timeout, shared)
        return ranks()
    if world == 1:
        return None
    if absent := [name for name in VARIABLES if name not in os.environ]:
        raise RuntimeError(
            f"WORLD_SIZE is {world}, but {', '.join(absent)} is not set; start the program with torchrun"
        )
    rank, store = int(os.environ["RANK"]), meeting_place(timeout, opens=True)
    backend = "cpu:gloo,cuda:nccl" if _all_have_cards(store, rank, world) else "gloo"
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout)
    )
    _current = Ranks(rank, world, timeout, shared)
    _current.watch = watch_over(rank, world, timeout, _current.told(secrets.token_hex(8)))
    _current.watch.start()
    _current.barrier()  # all have given a sign
    return _current


def _all_have_cards(store: Any, rank: int, world: int) -> bool:
    """Whether every rank has a GPU of its own. Its current one becomes that of its place on the host."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    place, beside = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if cards:
        torch.cuda.set_device(place % cards)
    store.set(f"cards/{rank}", "own" if cards >= beside else "none")
    return all(store.get(f"cards/{each}") == b"own" for each in range(world))


def ranks() -> Ranks | None:
    """The ranks that `init` joined; None where this process is alone.

    >>> ranks() is None
    True
    """
    return _current if _current is not None and _current.world > 1 else None


def leave() -> None:
    """Part from the other ranks; nothing where this process is alone."""
    global _current
    if _current is not None and _current.watch is not None:
        _current.watch.close()
    if _current is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    _current = None


def names_of(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 1, 2".

    >>> names_of([1, 2])
    'ranks 1, 2'
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
