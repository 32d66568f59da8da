"""Counts for admission of a checkpoint, for a share of a table that may be another than the ones that were saved.

A count is the least of four cells that an id has, one in each line, so it may be too high and never too low. A line
that is repeated gives the same counts in a wider one; cells that are added up, for a narrower line or for several
shares, give counts that are at least as high.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from hybridrec.embedding.policies import MinCount
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import Store
from hybridrec.train.checkpoint.part_info import PartInfo, sketch_file
from hybridrec.train.checkpoint.table_info import TableInfo, sketch_bytes, sketch_loss

LINES = 4


def sketch_of(folder: Path, name: str, info: TableInfo, home: Store) -> tuple[Tensor | None, str | None]:
    """The counts uint8 for a store, and what is to be said of them; `name` is the one that the table was saved by."""
    wanted = sketch_bytes(home)
    if wanted is None or home.saved.empty or sketch_loss(info, home) is not None:
        return None, None
    parts = [part for part in info.parts if part.share.column == 0 and part.meets(home.saved)]
    if (found := _as_they_were(folder, name, parts, home, wanted)) is not None:
        return found, None
    admission = home.table.admission
    assert isinstance(admission, MinCount), "no other policy counts"
    kind = np.dtype(np.uint16 if admission.k > 255 else np.uint8)
    lines = np.zeros((LINES, wanted // home.sketches // kind.itemsize // LINES), dtype=np.uint32)
    for part in parts:
        for counts in _read(folder, part.rank, name).chunk(part.sketches):
            lines += resized(counts.numpy().view(kind).reshape(LINES, -1), lines.shape[1])
            np.minimum(lines, np.iinfo(kind).max, out=lines)
    total = sum(part.sketches for part in parts)
    note = f"its counts for admission are those of {total} shares together: some may be too high"
    return torch.from_numpy(np.tile(lines.astype(kind).view(np.uint8).reshape(-1), home.sketches)), note


def _as_they_were(folder: Path, name: str, parts: Sequence[PartInfo], home: Store, wanted: int) -> Tensor | None:
    """The counts of a store whose ids are those of the one that was saved, of each server if it has several."""
    places, size = home.sketches, wanted // home.sketches
    if places > 1:
        if any((part.share.servers or part.sketches, part.sketch) != (places, size * part.sketches) for part in parts):
            return None
        made = torch.zeros(places, size, dtype=torch.uint8)
        for part in parts:
            made[part.share.index :: part.share.count] = _read(folder, part.rank, name).view(part.sketches, size)
        return made.view(-1)
    same = [
        part
        for part in parts
        if (part.sketch, part.sketches) == (wanted, 1) and _dealt(part.share) == _dealt(home.saved)
    ]
    return _read(folder, same[0].rank, name) if same else None


def _dealt(share: Share) -> tuple[int, int, int]:
    """Which ids it has."""
    return share.index, share.count, share.servers


def resized(lines: np.ndarray, width: int) -> np.ndarray:
    """Lines of counters [4, n] as lines [4, width]; both are powers of two.

    >>> resized(np.array([[1, 2]] * 4), 4)[0].tolist(), resized(np.array([[1, 2, 3, 4]] * 4), 2)[0].tolist()
    ([1, 2, 1, 2], [4, 6])
    """
    have = lines.shape[1]
    if have <= width:
        return np.tile(lines, (1, width // have))
    return lines.reshape(LINES, have // width, width).sum(axis=1, dtype=np.uint32)


def _read(folder: Path, rank: int, name: str) -> Tensor:
    with safe_open(folder / sketch_file(rank), "pt") as file:
        return file.get_tensor(name)
