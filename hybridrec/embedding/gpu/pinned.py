"""Memory of the host that a card reads and writes by itself."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor


class Pinned:
    """A tensor in memory of the host that stays where it is, so that kernels can reach it over the link.

    It has pages of its own, which are pinned once they are there: memory that torch pins itself is rounded up to a
    power of two, and a page shared with other memory would pin a part of that, from which CUDA then refuses to copy.
    On the CPU alone, where kernels are interpreted, it is ordinary memory.
    """

    def __init__(self, shape: Sequence[int], fill: float, dtype: torch.dtype, device: torch.device, name: str) -> None:
        try:
            self.tensor = _pages(math.prod(shape), dtype).view(tuple(shape))
        except OSError as error:  # of an address space with a limit, or a system that promises no more than it has
            size = math.prod(shape) * dtype.itemsize
            raise ValueError(_lacking(name, size, str(error.strerror), "`ulimit -v`")) from error
        self.tensor.fill_(fill)  # by all threads, so that pinning finds its pages there
        if device.type != "cuda" or not self.tensor.nbytes:
            return
        with torch.cuda.device(device):
            code = int(_runtime().cudaHostRegister(self.tensor.data_ptr(), self.tensor.nbytes, 0))
        if code:
            raise ValueError(_lacking(name, self.tensor.nbytes, f"CUDA error {code}", "`ulimit -l`"))
        weakref.finalize(self, _unpinned, self.tensor, device)


def _lacking(name: str, size: int, why: str, limit: str) -> str:
    return (
        f"the cold rows of table {name!r} need {size:,} bytes of pinned memory of the host, which refuses them "
        f"({why}); give the table a larger cache, a smaller type for cold rows such as cold=torch.int8, path=, a "
        f"directory on a disk for them, or fewer rows, or the host more memory, of which {limit} may allow less"
    )


def _pages(count: int, dtype: torch.dtype) -> Tensor:
    """Memory for so many numbers on pages that hold nothing else, large ones where the system has them."""
    if not count:
        return torch.empty(0, dtype=dtype)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=count)


def _unpinned(tensor: Tensor, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # no kernel reads it any more
        _runtime().cudaHostUnregister(tensor.data_ptr())


def _runtime() -> Any:
    return torch.cuda.cudart()
