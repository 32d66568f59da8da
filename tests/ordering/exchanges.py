"""What ranks send each other, as the stand-in card sees it: by NCCL from card to card, or through memory of the host.

With NCCL, a message is work of a stream of its own, behind all that the current one was given; who waits for it, waits
with the stream that is current then. As torch has it, memory of a message is kept until somebody has waited, and no
stream is recorded: whose stream that was, and which one it came from, is for the code to know.

Through the host, what is sent is read by it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from hybridrec.parallel import ahead
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.gpu import transport
from tests.ordering.card import Card
from tests.ordering.memory import READS, WRITES
from tests.ordering.operators import places_of
from tests.ordering.streams import Event, Stream
from tests.ordering.threads import LateExecutor


def watch(card: Card, monkeypatch: pytest.MonkeyPatch, nccl: bool) -> None:
    """Have exchanges tell the card what they read and write; cards send by themselves where they have NCCL."""
    monkeypatch.setattr(ahead, "ThreadPoolExecutor", lambda threads, thread_name_prefix: LateExecutor(card, "ids"))
    monkeypatch.setattr(transport, "has_nccl", lambda: nccl)
    monkeypatch.setattr(transport, "distributed", _Nccl(card))
    monkeypatch.setattr(Exchange, "_send", _read_at_once(card, Exchange._send))


def _read_at_once(card: Card, send: Callable[..., Any]) -> Callable[..., Any]:
    def sent(exchange: Exchange, group: str, kind: str, message: Tensor, *given: Any) -> Any:
        _access(card, card.thread, f"sending {kind}", message, READS)
        with card.quiet():
            return send(exchange, group, kind, message, *given)

    return sent


def _access(card: Card, who: int, what: str, tensor: Tensor, kind: str) -> None:
    block = card.memory.find(tensor.untyped_storage().data_ptr())
    if block is not None and tensor.numel():
        card.access(block, places_of(tensor, block.address), card.deed(who, what), kind)


class _Nccl:
    """In place of `torch.distributed`, for groups of ranks with a card each."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.kept: dict[_Work, tuple[Tensor, ...]] = {}  # of messages that nobody has waited for

    def new_group(self, ranks: list[int], backend: str, **options: Any) -> Stream:
        """The stream of such a group."""
        assert backend == "nccl", "cards talk by it"
        return Stream(self.card, self.card.device, "the stream of NCCL")

    def all_to_all_single(
        self, received: Tensor, message: Tensor, of: list[int], to: list[int], group: Stream, async_op: bool
    ) -> _Work:
        assert async_op, "a stream of its own does it"
        card = self.card
        begin = card.current.record_event().moment
        assert begin is not None, "it was recorded"
        card.clocks.follow(group.who, begin)
        _access(card, group.who, "a message by NCCL", message, READS)
        _access(card, group.who, "a message by NCCL", received, WRITES)
        with torch._C.DisableTorchFunction(), card.quiet():
            if len(to) == 1:
                received.copy_(message)
            else:
                distributed.all_to_all_single(received, message, of, to)
        work = _Work(self, group.record_event())
        self.kept[work] = received, message
        return work


class _Work:
    def __init__(self, nccl: _Nccl, done: Event) -> None:
        self._nccl, self._done = nccl, done

    def wait(self) -> None:
        """The current stream does, and torch keeps the memory no longer."""
        self._nccl.card.current.wait_event(self._done)
        self._nccl.kept.pop(self, None)
