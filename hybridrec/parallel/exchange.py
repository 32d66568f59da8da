"""Exchange: what ranks send each other for lookups and steps: sizes, ids, vectors, gradients, sums of columns."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from hybridrec import _native
from hybridrec.parallel.ahead import Ahead
from hybridrec.parallel.host_memory import host_memory
from hybridrec.parallel.ranks import Ranks

THROUGH_GLOO = ("ids", "vectors")  # channels with a group of their own where ranks share no memory
FEW = 1 << 20  # bytes for all other ranks, up to which they read a rank's numbers as they are and add up for themselves

Parts = tuple[int, Tensor] | None  # a rank, and the part of it


@dataclass
class Traffic:
    """What an exchange has done: calls and bytes to other ranks by kind of message, and seconds.

    `taken` counts from the start of a message until it is asked for and here, `blocked` the part of it in which
    somebody waited.
    """

    calls: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    taken: float = 0.0
    blocked: float = 0.0

    def count(self, kind: str, sent: int) -> None:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + sent

    def clear(self) -> None:
        self.calls, self.bytes, self.taken, self.blocked = {}, {}, 0.0, 0.0


class Outgoing(NamedTuple):
    """Room for a message of float32 numbers, with a part for each rank to be written."""

    parts: list[Tensor]
    message: Tensor  # what is sent of them
    to: list[int]
    received: Tensor | None  # where this rank's own part lies, if it is no part of the message


class Arriving:
    """A message that is on its way. `own` is what this rank has sent to itself, if it stays where it was."""

    def __init__(
        self, work: Any, received: Tensor, sent: Tensor, traffic: Traffic, of: Sequence[int], own: Parts = None
    ) -> None:
        self._work, self._received, self._sent, self._traffic = work, received, sent, traffic
        self._of, self._own = list(of), own
        self._began = time.perf_counter()

    def wait(self) -> Tensor:
        """What has come, once all of it is here."""
        if self._work is not None:
            waiting = time.perf_counter()
            self._work.wait()
            now = time.perf_counter()
            self._traffic.blocked += now - waiting
            self._traffic.taken += now - self._began
            self._work = self._sent = None
        return self._received

    def parts(self) -> list[Tensor]:
        """The same, rank by rank."""
        parts = list(self.wait().split(self._of))
        if self._own is not None:
            rank, part = self._own
            parts[rank] = part
        return parts


class Exchange:
    """Messages from every rank to every rank, each of its own size.

    Ids and vectors have channels of their own: ids of the next batch may travel while vectors of this one do, and
    neither meets the reduction of dense gradients. Ranks on one host share memory (`host_memory.py`); others have a
    Gloo group for each channel. `shared` asks for the one (True) or the other (False), as `ranks.shared` does.
    """

    def __init__(self, ranks: Ranks, shared: bool | None = None) -> None:
        self.rank, self.world = ranks.rank, ranks.world
        self.traffic = Traffic()
        self.ahead = Ahead()
        self.transports: dict[torch.device, Any] = {}  # of what is on GPUs
        self._arena = _native.Arena.create()
        self._memory = host_memory(ranks, ranks.shared if shared is None else shared) if ranks.world > 1 else None
        every, through_gloo = list(range(ranks.world)), ranks.world > 1 and self._memory is None
        self._groups = (
            {channel: distributed.new_group(every, backend="gloo") for channel in THROUGH_GLOO} if through_gloo else {}
        )

    @property
    def shared(self) -> bool:
        """Whether messages go through memory that all ranks share."""
        return self._memory is not None

    def sizes(self, mine: Tensor) -> Tensor:
        """Line r of `mine` int64 [world, n] goes to rank r; returns the lines that are for this rank."""
        return self._send("ids", "sizes", mine, [1] * self.world, [1] * self.world).wait()

    def ids(self, message: Tensor, to: Sequence[int], of: Sequence[int]) -> Arriving:
        """`to` numbers for each rank, `of` numbers from each."""
        return self._send("ids", "ids", message, to, of)

    def vectors(self, message: Tensor, to: Sequence[int], of: Sequence[int], kind: str = "vectors") -> Arriving:
        """The same for vectors, for gradients, or for sums."""
        return self._send("vectors", kind, message, to, of)

    def outgoing(self, to: Sequence[int], of: Sequence[int]) -> Outgoing:
        """Room for vectors, to be filled and sent by `posted`. Through shared memory, nobody copies this rank's own."""
        if self._memory is None:
            message = self._recycled(4 * sum(to), torch.float32)
            return Outgoing(list(message.split(list(to))), message, list(to), None)
        received, others = self._recycled(4 * sum(of), torch.float32), list(to)
        others[self.rank] = 0
        message = self._recycled(4 * sum(others), torch.float32)
        parts = list(message.split(others))
        parts[self.rank] = received.split(list(of))[self.rank]
        return Outgoing(parts, message, others, received)

    def posted(self, outgoing: Outgoing, of: Sequence[int]) -> Arriving:
        """Send vectors that lie there."""
        return self._send("vectors", "vectors", outgoing.message, outgoing.to, of, outgoing.received)

    def gradients(self, message: Tensor, to: Sequence[int], of: Sequence[int]) -> Arriving:
        """The same for gradients, which are asked for by `parts`: through shared memory, nobody copies this rank's."""
        if self._memory is None:
            return self.vectors(message, to, of, "gradients")
        received, own = self._recycled(sum(of) * message.element_size(), message.dtype), message.split(list(to))
        return self._send("vectors", "gradients", message, to, of, received, (self.rank, own[self.rank]))

    def summed(self, mine: Tensor) -> Tensor | None:
        """The sum over all ranks, the same on each bit for bit; None where torch must make it.

        Few numbers go through shared memory: a reduction by Gloo would cost a millisecond of its threads.
        """
        others, size = self.world - 1, mine.numel()
        if self._memory is None or mine.device.type != "cpu" or others * mine.nbytes > FEW:
            return None
        lines = [0 if rank == self.rank else size for rank in range(self.world)]
        received = self._recycled(others * mine.nbytes, mine.dtype)
        message = mine if others == 1 else mine.repeat(others)
        self._memory.send("layers", message, lines, received, lines, to_itself=False).wait()
        parts = list(received.split(lines))
        parts[self.rank] = mine
        return functools.reduce(torch.add, parts)

    def _send(
        self,
        group: str,
        kind: str,
        message: Tensor,
        to: Sequence[int],
        of: Sequence[int],
        received: Tensor | None = None,
        own: Parts = None,
    ) -> Arriving:
        """Where `received` is given, what this rank sends to itself stays where it is."""
        line = prod(message.shape[1:]) * message.element_size()  # bytes
        self.traffic.count(kind, (sum(to) - to[self.rank]) * line)
        if self.world == 1:
            return Arriving(None, message, message, self.traffic, of)
        to_itself = received is None
        if received is None:
            received = self._recycled(sum(of) * line, message.dtype).view(sum(of), *message.shape[1:])
        if self._memory is not None:
            work = self._memory.send(group, message, to, received, of, to_itself)
        else:
            work = distributed.all_to_all_single(
                received, message, list(of), list(to), group=self._groups[group], async_op=True
            )
        return Arriving(work, received, message, self.traffic, of, own)

    def _recycled(self, size: int, dtype: torch.dtype) -> Tensor:
        """So many bytes, in memory that comes back when they go: touching fresh memory costs more than filling it."""
        if size == 0:
            return torch.empty(0, dtype=dtype)
        return torch.from_numpy(self._arena.take(size)).view(dtype)
