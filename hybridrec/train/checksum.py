"""Checksums of files: XXH64 of each block, so that damage has a place, and at the speed of memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from hybridrec import _native

BLOCK = 16 << 20  # bytes


def checksums(path: Path) -> list[str]:
    """XXH64 (seed 0) of every 16 MiB of the file, in hexadecimal.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "a")
    >>> _ = file.write_bytes(b"hybrid")
    >>> checksums(file)
    ['a712172bb784f32f']
    """
    size = path.stat().st_size
    if size == 0:
        return []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        ends = np.append(np.arange(0, size, BLOCK), size)
        sums = np.empty(len(ends) - 1, dtype=np.uint64)
        view = np.frombuffer(content, dtype=np.uint8)
        _native.hash_bytes(ends.ctypes.data, 8, view.ctypes.data, len(sums), sums.ctypes.data, 0)
        del view  # it holds the map open
    return [f"{value:016x}" for value in sums.tolist()]


def damaged(path: Path, wanted: list[str]) -> str | None:
    """Which bytes of the file are not those that were written, or None."""
    places = [place for place, pair in enumerate(zip(checksums(path), wanted, strict=True)) if pair[0] != pair[1]]
    if not places:
        return None
    first, last = places[0] * BLOCK, min((places[0] + 1) * BLOCK, path.stat().st_size) - 1
    more = f", and {len(places) - 1} more such blocks" if len(places) > 1 else ""
    return f"bytes {first:,} to {last:,} are not those that were written: their checksum differs{more}"
