"""Memory of a card that columns of this process have; how much of it is free other processes decide too."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from hybridrec.ops import reserved_cuda


class Taken:
    """What the driver has given from here on and has not got back: a piece that has a handle, or addresses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._handles: dict[int, int] = {}  # sizes
        self._mapped: dict[int, int] = {}  # sizes, by address
        self._call = reserved_cuda._call
        monkeypatch.setattr(reserved_cuda, "_call", self._counted)

    @property
    def bytes(self) -> int:
        return sum(self._handles.values()) + sum(self._mapped.values())

    def _counted(self, name: str, *args: Any) -> None:
        """Call the driver, which raises where it does not do so, then count."""
        self._call(name, *args)
        if name == "cuMemCreate":
            self._handles[args[0]._obj.value] = args[1].value
        elif name == "cuMemRelease":
            self._handles.pop(args[0].value, None)
        elif name == "cuMemMap":
            self._mapped[args[0].value] = args[1].value
        elif name == "cuMemUnmap":
            first, size = args[0].value, args[1].value
            self._mapped = {at: of for at, of in self._mapped.items() if not first <= at < first + size}


def mapped(address: int) -> bool:
    """Whether there is memory at an address of a card that was reserved, as the driver says."""
    driver, handle = reserved_cuda._driver(), ctypes.c_uint64()
    found = driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == 0
    if found:
        assert driver.cuMemRelease(handle) == 0
    return found
