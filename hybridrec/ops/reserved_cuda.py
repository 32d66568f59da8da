"""Addresses of a card that get memory as it is needed, by the virtual memory calls of the CUDA driver.

Memory of them is not torch's: `torch.cuda.memory_allocated` does not count it, `torch.cuda.mem_get_info` does. The
calls do not wait for the device: some 0.3 ms for 64 MiB or 1 GiB on an H200. A card translates addresses of large pages
fastest, so pieces of memory lie at multiples of their own size; over some that did not, a gather of rows from 16 GiB
took 3.3 ms, and 2.5 from memory of torch.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from ctypes import c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

LARGE = 1 << 30  # bytes: no piece needs to be larger, nor addresses to begin at multiples of more
PARTS = 8  # of what is there, one may be there in vain
LACKING = 2  # CUDA_ERROR_OUT_OF_MEMORY
PINNED, DEVICE, READ_AND_WRITE = 1, 1, 3  # of allocations, of locations, of access

_gone: list[tuple[int, int, list[int], torch.device]] = []  # what nobody uses any more, and is to be given back
_lock = threading.RLock()  # of it: any thread collects garbage, at any time


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class Flags(ctypes.Structure):
    _fields_ = (("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4))


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p), ("flags", Flags))


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


class CardPages:
    """Addresses of a card, of which the first bytes have memory; see `reserved.Reserved`."""

    def __init__(self, most: int, device: torch.device) -> None:
        _give_back()
        self._device, self._unit, self.extent = device, unit_of(device), 0
        self.size, found = -(-most // self._unit) * self._unit, c_uint64()
        begin = c_size_t(min(LARGE, _power(self.size)))
        _call("cuMemAddressReserve", ctypes.byref(found), c_size_t(self.size), begin, c_uint64(0), c_uint64(0))
        self.address = found.value
        self._mapped = [0]  # the extent, where it can be read when this is gone
        weakref.finalize(self, _let_go, self.address, self.size, self._mapped, device).atexit = False

    def grow(self, size: int) -> None:
        if size <= self.extent:
            return
        _give_back()
        try:
            self._grow(min(self.size, rounded(size, self._unit)))
        except torch.OutOfMemoryError:
            self._grow(-(-size // self._unit) * self._unit)  # with pieces as small as need be

    def _grow(self, extent: int) -> None:
        before = self.extent
        try:
            with torch.cuda.device(self._device):
                for size in pieces(before, extent):
                    self._map(size)
                    self.extent = self._mapped[0] = self.extent + size
        except BaseException:
            self.shrink(before)
            raise

    def _map(self, size: int) -> None:
        """A piece of memory behind those that are there."""
        handle, made = c_uint64(), _properties(self._device)
        _created(handle, size, made)
        address, length = c_uint64(self.address + self.extent), c_size_t(size)
        try:
            _call("cuMemMap", address, length, c_size_t(0), handle, c_uint64(0))
        finally:
            _call("cuMemRelease", handle)  # what is mapped stays until it is unmapped
        try:
            access = Access(made.location, READ_AND_WRITE)
            _call("cuMemSetAccess", address, length, ctypes.byref(access), c_size_t(1))
        except BaseException:
            _call("cuMemUnmap", address, length)
            raise

    def shrink(self, extent: int) -> None:
        if extent < self.extent:
            with torch.cuda.device(self._device):
                _call("cuMemUnmap", c_uint64(self.address + extent), c_size_t(self.extent - extent))
            self.extent = self._mapped[0] = extent

    def tensor(self, size: int) -> Tensor:
        return torch.as_tensor(_Bytes(self, size), device=self._device)


class _Bytes:
    """What torch makes a tensor of; it holds this as long as the tensor is there."""

    def __init__(self, pages: CardPages, size: int) -> None:
        self.pages = pages
        self.__cuda_array_interface__ = {
            **{"shape": (size,), "typestr": "|u1", "data": (pages.address, False)},
            **{"strides": None, "version": 3},
        }


def pieces(first: int, last: int) -> Iterator[int]:
    """The sizes of pieces from one place to another: powers of two, each at a multiple of itself, as large as can be.

    >>> list(pieces(0, 5)), list(pieces(5, 16)), list(pieces(16, 32))
    ([4, 1], [1, 2, 8], [16])
    """
    while first < last:
        size = _power(last - first + 1) // 2
        size = min(size, first & -first) if first else size
        yield size
        first += size


def rounded(size: int, unit: int) -> int:
    """How much to have where so many bytes are needed: up to an eighth more, so that pieces are few and large.

    >>> [rounded(size, unit=2) for size in (1, 16, 33, 65, 1000)]
    [2, 16, 36, 72, 1024]
    """
    step = min(LARGE, max(unit, _power(size) // 2 // PARTS))
    return -(-size // step) * step


def _power(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << (size - 1).bit_length()


def _created(handle: c_uint64, size: int, made: Properties) -> None:
    """Memory that has no address yet; torch first gives back what it holds for later, where there is too little."""
    wanted = ctypes.byref(handle), c_size_t(size), ctypes.byref(made), c_uint64(0)
    try:
        _call("cuMemCreate", *wanted)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        _call("cuMemCreate", *wanted)


def _let_go(*gone: Any) -> None:
    _gone.append(gone)
    _give_back()


def _give_back() -> None:
    """Give back what is gone; not while a CUDA graph is captured, which a wait for the device would spoil."""
    if not _gone or torch.cuda.is_current_stream_capturing():
        return
    with _lock:
        while _gone:
            address, size, mapped, device = _gone.pop()
            with torch.cuda.device(device):
                torch.cuda.synchronize()  # no kernel reads it any more
                if mapped[0]:
                    _call("cuMemUnmap", c_uint64(address), c_size_t(mapped[0]))
                _call("cuMemAddressFree", c_uint64(address), c_size_t(size))


def _properties(device: torch.device) -> Properties:
    return Properties(PINNED, 0, Location(DEVICE, _number(device)))


@cache
def unit_of(device: torch.device) -> int:
    """The bytes of which a card maps multiples: 2 MiB."""
    found = c_size_t()
    torch.cuda.mem_get_info(device)  # there is a context from here on
    made = _properties(device)
    _call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(made), c_int(0))
    return found.value


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _call(name: str, *args: Any) -> None:
    """Call the driver; OutOfMemoryError where it has too little."""
    code = getattr(_driver(), name)(*args)
    if code:
        told = ctypes.c_char_p()
        _driver().cuGetErrorString(c_int(code), ctypes.byref(told))
        said = f"{name}: CUDA error {code}, {(told.value or b'unknown').decode()}"
        raise torch.OutOfMemoryError(said) if code == LACKING else RuntimeError(said)


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
