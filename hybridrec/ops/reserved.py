"""Tensors that grow where they lie: addresses for all of one are set aside at once, and get memory as it is needed.

So growing copies nothing, kernels keep the addresses they know, and never are two copies there.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
OPEN, CLOSED = mmap.PROT_READ | mmap.PROT_WRITE, 0
UNUSED = 4  # madvise: the pages of a range may go


class Reserved(Protocol):
    """Addresses, of which the first bytes have memory."""

    @property
    def address(self) -> int: ...

    @property
    def extent(self) -> int:
        """Bytes that have memory."""
        ...

    def grow(self, size: int) -> None:
        """Have memory for so many bytes; OutOfMemoryError where there is too little, and nothing has changed."""
        ...

    def shrink(self, extent: int) -> None:
        """Give back what the last `grow` has added, which nobody has used: there were so many bytes before."""
        ...

    def tensor(self, size: int) -> Tensor:
        """The first bytes uint8; as long as it is there they have memory."""
        ...


class Column:
    """A tensor [count, …] that grows: there are addresses for `most` elements, and memory for the first `count`.

    `tensor` has those. New elements may hold anything. Memory is given back when column and tensors are gone.

    >>> ids = Column(10**9, (), torch.int64, torch.device("cpu"))
    >>> ids.grow(3)
    >>> ids.tensor[:] = 7
    >>> ids.grow(5)
    >>> ids.tensor[:3], len(ids.tensor)
    (tensor([7, 7, 7]), 5)
    """

    def __init__(self, most: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.most, self._shape, self._dtype = most, tuple(shape), dtype
        self._width = math.prod(shape) * dtype.itemsize
        self._memory = _reserved(most * self._width, device)
        self.tensor = torch.empty(0, *shape, dtype=dtype, device=device)
        self.count = 0

    @property
    def address(self) -> int:
        return self._memory.address

    @property
    def nbytes(self) -> int:
        """What it takes: memory comes in whole units."""
        return self._memory.extent

    @torch.inference_mode(False)  # what is made where gradients are off is written where they are not
    def grow(self, count: int) -> None:
        """Have memory for so many elements; OutOfMemoryError where there is too little, and nothing has changed."""
        if count > self.most:
            raise torch.OutOfMemoryError(f"{count:,} elements, where {self.most:,} have addresses")
        self._memory.grow(count * self._width)
        self._take(count)

    @torch.inference_mode(False)
    def shrink(self, count: int, extent: int) -> None:
        """Be again as it was before the last `grow`."""
        self._memory.shrink(extent)
        self._take(count)

    def _take(self, count: int) -> None:
        self.count = count
        if count:  # a tensor of none would have no address
            of_bytes = self._memory.tensor(count * self._width)
            self.tensor = of_bytes.view(self._dtype).view(count, *self._shape)
        else:
            self.tensor = self.tensor[:0]


def grow_all(columns: Sequence[Column], count: int) -> None:
    """Have memory for so many elements of each column; OutOfMemoryError where it is too little, and none has grown."""
    before = [(column.count, column.nbytes) for column in columns]
    try:
        for column in columns:
            column.grow(count)
    except torch.OutOfMemoryError:
        for column, (elements, extent) in zip(columns, before, strict=True):
            column.shrink(elements, extent)
        raise


def _reserved(most: int, device: torch.device) -> Reserved:
    if device.type != "cuda":
        return HostPages(most)
    from hybridrec.ops.reserved_cuda import CardPages, unit_of

    return Whole(most, device) if most <= unit_of(device) else CardPages(most, device)


class Whole:
    """All of it from torch, at the first call: where that is less than the smallest part that a card can map."""

    def __init__(self, most: int, device: torch.device) -> None:
        self._most, self._bytes = most, torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def address(self) -> int:
        return self._bytes.data_ptr()

    @property
    def extent(self) -> int:
        return len(self._bytes)

    def grow(self, size: int) -> None:
        if size > self.extent:
            self._bytes = self._bytes.new_empty(self._most)

    def shrink(self, extent: int) -> None:
        self._bytes = self._bytes if extent else self._bytes.new_empty(0)

    def tensor(self, size: int) -> Tensor:
        return self._bytes[:size]


class HostPages:
    """Pages of the host, where kernels are interpreted: who reads beyond those that have memory ends the process.

    On a card he would read an address that is none, too.
    """

    def __init__(self, most: int) -> None:
        self.size, self.extent = max(1, -(-most // mmap.PAGESIZE)) * mmap.PAGESIZE, 0
        found = _libc().mmap(None, self.size, CLOSED, PRIVATE, -1, 0)
        if found in (None, 2**64 - 1):
            raise torch.OutOfMemoryError(f"addresses for {most:,} bytes: {os.strerror(ctypes.get_errno())}")
        self.address = found
        weakref.finalize(self, _libc().munmap, self.address, self.size).atexit = False

    def grow(self, size: int) -> None:
        extent = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if extent > self.extent:
            if _libc().mprotect(self.address, extent, OPEN):
                raise torch.OutOfMemoryError(f"{extent:,} bytes: {os.strerror(ctypes.get_errno())}")
            self.extent = extent

    def shrink(self, extent: int) -> None:
        if extent < self.extent:
            _libc().madvise(self.address + extent, self.extent - extent, UNUSED)
            _libc().mprotect(self.address + extent, self.extent - extent, CLOSED)
            self.extent = extent

    def tensor(self, size: int) -> Tensor:
        found: Any = (ctypes.c_ubyte * size).from_address(self.address)
        found.pages = self  # which stay as long as the tensor does
        return torch.frombuffer(found, dtype=torch.uint8)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype, libc.mmap.argtypes = address, [address, size, number, number, number, ctypes.c_long]
    libc.mprotect.argtypes = libc.madvise.argtypes = [address, size, number]
    libc.munmap.argtypes = [address, size]
    return libc
