"""Roads between a card and its host: ids come down, vectors go up, gradients come down.

Each has a stream of its own, so that none waits for more than it must: ids for the copy that brings their batch,
vectors for nothing, gradients for the backward that makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hybridrec.embedding.gpu.streams import stream_apart
from hybridrec.types import IdBlock


class Fetched(NamedTuple):
    """A block that is on the host once the event `ready` has come; `versions` are those of what was read for it."""

    block: IdBlock
    ready: Any = None
    versions: tuple[int, ...] = ()

    def is_of(self, block: IdBlock) -> bool:
        """Whether what was read is still what this block on the device holds."""
        return self.versions == _versions(block)

    def arrived(self) -> IdBlock:
        """The block, when it is here."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.block


class Roads:
    """The streams of copies between the host and a device; on the CPU, which has none, the same by plain copies."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cuda = device.type == "cuda"
        self._ids, self._up, self._down = (stream_apart(device) if cuda else None for _ in range(3))

    def fetch(self, block: IdBlock, names: Sequence[str]) -> Fetched:
        """Have these features of a block come to the host, after what the current stream does now."""
        if self._ids is None:
            return Fetched(block)
        self._ids.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in _tensors(block):
            tensor.record_stream(self._ids)  # its memory is not to be used anew before it is read
        with torch.cuda.stream(self._ids), torch.no_grad():
            here = block.select(names).map_tensors(_to_host)
        return Fetched(here, self._ids.record_event(), _versions(block))

    def up(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of vectors on the device, for the current stream."""
        if self._up is None:
            return [part.clone() for part in vectors]
        here = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._up):
            made = [part.to(self.device, non_blocking=True) for part in vectors]
        here.wait_stream(self._up)
        for part in made:
            part.record_stream(here)
        return made

    def down(self, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Any]:
        """Copies of gradients on the host, and the event after which they may be read; None on the CPU."""
        if self._down is None:
            return [None if part is None else part.clone() for part in gradients], None
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        made: list[Tensor | None] = []
        with torch.cuda.stream(self._down):
            for part in gradients:
                if part is not None:
                    part.record_stream(self._down)
                made.append(None if part is None else _to_host(part))
        return made, self._down.record_event()


def _tensors(block: IdBlock) -> list[Tensor]:
    return [part for part in (block.values, block.offsets, block.weights) if part is not None]


def _versions(block: IdBlock) -> tuple[int, ...]:
    return tuple(-1 if part.is_inference() else part._version for part in _tensors(block))


def _to_host(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
