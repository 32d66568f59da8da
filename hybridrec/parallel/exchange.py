"""Exchange: what ranks send each other for lookups. Four messages at most: sizes, ids, vectors, gradients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed

from hybridrec.parallel.ahead import Ahead
from hybridrec.parallel.ranks import Ranks


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


class Arriving:
    """A message that is on its way."""

    def __init__(self, work: Any, received: Tensor, sent: Tensor, traffic: Traffic) -> None:
        self._work, self._received, self._sent, self._traffic = work, received, sent, traffic
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


class Exchange:
    """Messages from every rank to every rank, each of its own size.

    Ids and vectors go through process groups of their own: ids of the next batch may travel while vectors of this one
    do, and neither meets the reduction of dense gradients.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.world = ranks.rank, ranks.world
        self.traffic = Traffic()
        self.ahead = Ahead()
        every = list(range(ranks.world))
        self._groups = {kind: distributed.new_group(every) for kind in ("ids", "vectors")} if ranks.world > 1 else {}

    def sizes(self, mine: Tensor) -> Tensor:
        """Line r of `mine` int64 [world, n] goes to rank r; returns the lines that are for this rank."""
        return self._send("ids", "sizes", mine, [1] * self.world, [1] * self.world).wait()

    def ids(self, message: Tensor, to: Sequence[int], of: Sequence[int]) -> Arriving:
        """`to` numbers for each rank, `of` numbers from each."""
        return self._send("ids", "ids", message, to, of)

    def vectors(self, message: Tensor, to: Sequence[int], of: Sequence[int], kind: str = "vectors") -> Arriving:
        """The same for vectors, or for gradients."""
        return self._send("vectors", kind, message, to, of)

    def _send(self, group: str, kind: str, message: Tensor, to: Sequence[int], of: Sequence[int]) -> Arriving:
        line = message[0].numel() if message.dim() > 1 else 1
        others = sum(to) - to[self.rank]
        self.traffic.count(kind, others * line * message.element_size())
        if self.world == 1:
            return Arriving(None, message, message, self.traffic)
        received = torch.empty(sum(of), *message.shape[1:], dtype=message.dtype)
        work = distributed.all_to_all_single(
            received, message, list(of), list(to), group=self._groups[group], async_op=True
        )
        return Arriving(work, received, message, self.traffic)
