"""Transports: how what ranks send each other gets from card to card, by NCCL or through memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from hybridrec.parallel.exchange import Arriving, Exchange
from hybridrec.parallel.process import host_name
from hybridrec.parallel.ranks import Ranks, has_nccl


class OnItsWay(Protocol):
    """A message that is on its way."""

    def wait(self) -> Tensor:
        """What has come, on the device: the current stream may read it."""
        ...


class Transport(Protocol):
    """Messages of numbers on a device from every rank to every rank. All ranks send in the same order."""

    name: str

    def send(self, kind: str, message: Tensor, to: Sequence[int], of: Sequence[int]) -> OnItsWay:
        """`to` numbers for each rank, `of` numbers from each; `kind` is what they are counted as."""
        ...


class Nccl:
    """Cards talk to each other. Nobody on the host waits: streams do."""

    name = "nccl"

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        self._exchange = exchange
        every, within = list(range(exchange.world)), timedelta(seconds=timeout)
        self._group: Any = distributed.new_group(every, backend="nccl", timeout=within)

    def send(self, kind: str, message: Tensor, to: Sequence[int], of: Sequence[int]) -> OnItsWay:
        own = to[self._exchange.rank]
        self._exchange.traffic.count(kind, (sum(to) - own) * message.element_size())
        received = message.new_empty(sum(of))
        work = distributed.all_to_all_single(received, message, list(of), list(to), group=self._group, async_op=True)
        return _ByNccl(work, received, message)


class _ByNccl:
    def __init__(self, work: Any, received: Tensor, sent: Tensor) -> None:
        self._work, self._received = work, received
        self._sent: Any = sent

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()  # the current stream does
            if self._sent.is_cuda:  # its memory may be that of another stream, which does not wait
                self._sent.record_stream(torch.cuda.current_stream(self._sent.device))
            self._work = self._sent = None
        return self._received


class Staged:
    """Messages go to the host, from there as those of ranks on CPUs do, and back: for ranks that share a card."""

    name = "staged"

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def send(self, kind: str, message: Tensor, to: Sequence[int], of: Sequence[int]) -> OnItsWay:
        device = message.device
        if message.is_cuda:
            here = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
            here.copy_(message, non_blocking=True)
            torch.cuda.current_stream(device).synchronize()
            message = here
        return _Staged(self._exchange.vectors(message, to, of, kind), device)


class _Staged:
    def __init__(self, arriving: Arriving, device: torch.device) -> None:
        self._arriving, self._device = arriving, device
        self._received: Tensor | None = None

    def wait(self) -> Tensor:
        if self._received is None:
            self._received = self._arriving.wait().to(self._device)
        return self._received


def transport_for(ranks: Ranks, exchange: Exchange, device: torch.device) -> Transport:
    """NCCL where every rank has a card of its own and has joined with it, as `hybridrec.init` does; else by the host.

    Every rank asks, and all get the same answer.
    """
    mine = None
    if device.type == "cuda" and has_nccl():
        mine = [host_name(), str(torch.cuda.get_device_properties(device).uuid)]
    cards = ranks.all_told(mine)
    apart = len({tuple(card) for card in cards if card is not None}) == ranks.world
    return Nccl(exchange, ranks.timeout) if apart else Staged(exchange)
