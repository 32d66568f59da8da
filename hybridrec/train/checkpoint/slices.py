"""Rows whose columns lie in several files of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hybridrec.train.checkpoint.part_info import PartInfo
from hybridrec.train.checkpoint.table_file import TableFile
from hybridrec.train.checkpoint.table_info import TableInfo


class Slices:
    """Files that have different columns of the same rows: side by side mostly, else found by id."""

    def __init__(self, folder: Path, info: TableInfo, parts: Sequence[PartInfo]) -> None:
        ordered = sorted(parts, key=lambda part: part.share.column)
        self.first = ordered[0]
        self.files = [TableFile(folder / part.file, part.rows) for part in ordered]
        self.columns = [info.columns(part) for part in ordered]
        self._places: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.files[0])

    @property
    def names(self) -> list[str]:
        return self.files[0].names

    def of_row(self, batch: int, name: str) -> Tensor:
        """One value for each row of a batch, which the file with the first columns has."""
        return self.files[0].column(batch, name)

    def of_columns(self, batch: int, name: str, wanted: range, picked: Tensor | None) -> Tensor:
        """The wanted columns of those rows of a batch that are picked, all if None; a view where one file has them."""
        found = []
        for place, held in enumerate(self.columns):
            first, last = max(held.start, wanted.start), min(held.stop, wanted.stop)
            if first < last:
                values = self._rows(place, batch, name, picked)
                found.append(values[:, first - held.start : last - held.start])
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def _rows(self, place: int, batch: int, name: str, picked: Tensor | None) -> Tensor:
        file, ids = self.files[place], self.of_row(batch, "id")
        if place == 0 or (batch < len(file) and torch.equal(file.column(batch, "id"), ids)):
            values = file.column(batch, name)
            return values if picked is None else values[picked]
        return self._by_id(place, name, ids if picked is None else ids[picked])

    def _by_id(self, place: int, name: str, ids: Tensor) -> Tensor:
        file, (known, order) = self.files[place], self._index(place)
        at = np.searchsorted(known, ids.numpy(), sorter=order).clip(max=len(known) - 1)
        where = torch.from_numpy(order[at])  # in the file, counted over its batches
        if not len(known) or not np.array_equal(known[where.numpy()], ids.numpy()):
            raise ValueError("columns of some rows are not in the checkpoint; load another one")
        made, start = None, 0
        for batch in range(len(file)):
            values = file.column(batch, name)
            here = (where >= start) & (where < start + len(values))
            made = values.new_empty(len(ids), values.shape[1]) if made is None else made
            made[here] = values[where[here] - start]
            start += len(values)
        assert made is not None, "a file with rows has batches"
        return made

    def _index(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a file, and their order."""
        if place not in self._places:
            known = torch.cat([torch.empty(0, dtype=torch.int64), *self.files[place].ids()]).numpy()
            self._places[place] = known, known.argsort(kind="stable")
        return self._places[place]


def slices_of(folder: Path, info: TableInfo, parts: Sequence[PartInfo]) -> list[Slices]:
    """The parts by the rows that they have."""
    by_rows: dict[tuple[int, int], list[PartInfo]] = {}
    for part in parts:
        by_rows.setdefault((part.share.index, part.share.count), []).append(part)
    return [Slices(folder, info, by_rows[key]) for key in sorted(by_rows)]


def check_parts(table: str, info: TableInfo) -> None:
    """Raise where parts of a table are missing, or there twice."""
    rows = sorted({(part.share.count, part.share.index) for part in info.parts})
    count = rows[0][0] if rows else 0
    if rows != [(count, index) for index in range(max(count, 1))]:
        raise ValueError(f"table {table!r}: the ranks hold shares {rows} (count, index), which are not all of it")
    for _, index in rows:
        held = sorted(
            (columns.start, columns.stop)
            for columns in (info.columns(part) for part in info.parts if part.share.index == index)
        )
        ends = [0, *(stop for _, stop in held)]
        if ends[:-1] != [start for start, _ in held] or ends[-1] != info.dim:
            raise ValueError(f"table {table!r}: columns {held} of share {index} are held, which are not all {info.dim}")
