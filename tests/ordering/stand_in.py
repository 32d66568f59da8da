"""standing_in: within it, CUDA as GPU code knows it is the stand-in."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridrec.embedding.gpu import lane, pinned, replay
from hybridrec.ops import reserved
from hybridrec.train import graphs
from tests.ordering import launches
from tests.ordering.card import Card
from tests.ordering.memory import CARD, PINNED
from tests.ordering.operators import Asked, Dispatched
from tests.ordering.threads import LateExecutor

MEMORY = 1 << 40  # bytes that the stand-in has


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    """A card for this process, as long as the patches are there."""
    made = Card()
    _stand_in_for_cuda(made, monkeypatch)
    _lend_memory(made, monkeypatch)
    launches.watch(made, monkeypatch)
    monkeypatch.setattr(lane, "ThreadPoolExecutor", lambda threads, name: LateExecutor(made, name))
    monkeypatch.setattr(graphs, "captured", made.captured)
    monkeypatch.setattr(replay, "captured", made.replayed)
    with Asked(made), Dispatched(made):
        yield made


def _stand_in_for_cuda(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins: dict[str, Any] = {
        "Stream": card.stream,
        "Event": card.event,
        "stream": card.on,
        "set_stream": card.set_stream,
        "current_stream": lambda device=None: card.current,
        "synchronize": card.synchronize,
        "is_current_stream_capturing": lambda: card.current.within is not None,
        "device": lambda device: nullcontext(),
        "device_of": lambda tensor: nullcontext(),
        "empty_cache": lambda: None,
        "get_device_properties": lambda device: SimpleNamespace(total_memory=MEMORY, uuid=os.getpid()),
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "record_stream", card.record_stream)


def _lend_memory(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that torch does not hand out: addresses that get memory later, and pages that are pinned."""

    def lent(most: int, device: torch.device) -> reserved.HostPages:
        made = reserved.HostPages(most)
        if device.type == "cuda":
            block = card.add(made.address, made.size, CARD)
            block.lasts = True  # who lets go of it waits for the device
            weakref.finalize(made, card.remove, block).atexit = False
        return made

    def register(address: int, size: int, flags: int) -> int:
        card.add(address, size, PINNED).lasts = True
        return 0

    def unpinned(tensor: torch.Tensor, device: torch.device) -> None:
        block = card.memory.find(tensor.untyped_storage().data_ptr())
        if block is not None:
            card.remove(block)

    monkeypatch.setattr(reserved, "_reserved", lent)
    monkeypatch.setattr(pinned, "_runtime", lambda: SimpleNamespace(cudaHostRegister=register))
    monkeypatch.setattr(pinned, "_unpinned", unpinned)
