"""Numbers of a device on the host, where other threads go on using the device meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


def brought(parts: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Tensors on the CPU, once the current stream has copied them; those that are there stay as they are.

    They go to page-locked memory, and then this thread waits. A copy into other memory waits inside CUDA, where it
    holds a lock that all threads need to launch anything.
    """
    there = {key: part for key, part in parts.items() if part.is_cuda}
    here = {key: torch.empty_like(part, device="cpu", pin_memory=True) for key, part in there.items()}
    for key, part in there.items():
        here[key].copy_(part, non_blocking=True)
    for device in {part.device for part in there.values()}:
        torch.cuda.current_stream(device).record_event().synchronize()
    return {key: here.get(key, part) for key, part in parts.items()}
