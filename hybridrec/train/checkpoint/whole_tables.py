"""Whole tables out of a checkpoint, one file each, however many parts they were saved in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from hybridrec.embedding.store import RowData
from hybridrec.train.checkpoint.manifest import Manifest, read_manifest
from hybridrec.train.checkpoint.part_info import PartInfo, file_name
from hybridrec.train.checkpoint.saved_table import SavedTable
from hybridrec.train.checkpoint.table_file import write_table
from hybridrec.train.checkpoint.table_info import TableInfo
from hybridrec.train.checkpoint.verify import problems_of_files
from hybridrec.train.manifest_body import CheckpointError

ROWS = 65536  # that are in memory at a time


def export_tables(checkpoint: Path | str, out: Path | str, tables: Sequence[str] | None = None) -> dict[str, Path]:
    """Write tables of a checkpoint, by default all, as an Arrow file each into a folder; returns the files by table.

    A file has the columns of a table file: id, row, optimizer state, scores. Parts are read side by side, a few rows at
    a time. Rows are in the order of their ids if those of each part are, as of fixed tables; else part after part.

    >>> import tempfile, hybridrec as hr
    >>> from hybridrec.train.checkpoint import Checkpoints, Contents, open_table
    >>> with Checkpoints(tempfile.mkdtemp()) as checkpoints:
    ...     checkpoints.save(Contents(hr.EmbeddingCollection([hr.Table("item", dim=2, rows=3)])), step=10)
    >>> files = export_tables(checkpoints.latest(), tempfile.mkdtemp())
    >>> open_table(files["item"])["id"].to_pylist()
    [0, 1, 2]
    """
    folder, target = Path(checkpoint), Path(out)
    manifest = read_manifest(folder)
    infos = {name: _info(manifest, name) for name in (manifest.tables if tables is None else tables)}
    files = {name: target / file_name(name) for name in infos}
    for file in files.values():
        if file.exists():
            raise FileExistsError(f"{file} is there already; give another folder, or delete it")
    wanted = {part.file for info in infos.values() for part in info.parts}
    if problems := [each for each in problems_of_files(folder, manifest, sums=wanted) if each.file in wanted]:
        raise CheckpointError(f"checkpoint {folder} is damaged: {problems[0]}; export another checkpoint")
    target.mkdir(parents=True, exist_ok=True)
    for name, info in infos.items():
        beside = files[name].with_name(f".{files[name].name}.part")
        try:
            write_table(beside, rows_of(folder, info))
            os.replace(beside, files[name])
        finally:
            beside.unlink(missing_ok=True)
    return files


def _info(manifest: Manifest, table: str) -> TableInfo:
    if table not in manifest.tables:
        raise ValueError(f"the checkpoint has no table {table!r}; it has {', '.join(manifest.tables) or 'none'}")
    return manifest.tables[table]


def rows_of(folder: Path, info: TableInfo) -> Iterator[RowData]:
    """All rows of a table in chunks: by id where the ids of each part ascend."""
    by_rows: dict[tuple[int, int], list[PartInfo]] = {}
    for part in info.parts:
        by_rows.setdefault((part.share.index, part.share.count), []).append(part)
    found = [SavedTable(folder, replace(info, parts=tuple(parts))) for parts in by_rows.values()]
    with_rows = [table for table in found if table.most] or found[:1]
    if len(with_rows) > 1 and all(_ascend(table) for table in with_rows):
        return merged([table.chunks() for table in with_rows])
    return (chunk for table in with_rows for chunk in table.chunks())


def _ascend(table: SavedTable) -> bool:
    last = None
    for ids in table.ids():
        first = ids[:1] if last is None else torch.stack([last, ids[0]])
        if bool((ids[1:] <= ids[:-1]).any()) or bool((first[1:] <= first[:-1]).any()):
            return False
        last = ids[-1]
    return True


def merged(streams: Sequence[Iterable[RowData]], rows: int = ROWS) -> Iterator[RowData]:
    """The rows of streams that each are in the order of ids, as one; about so many at a time."""
    each = max(1, rows // len(streams))
    sources = [_slices(stream, each) for stream in streams]
    waiting = {place: part for place, source in enumerate(sources) if (part := next(source, None)) is not None}
    while waiting:
        bound = min(int(part.ids[-1]) for part in waiting.values())
        taken = []
        for place, part in list(waiting.items()):
            count = int(torch.searchsorted(part.ids, bound, right=True))
            taken.append(_cut(part, slice(count)))
            left = _cut(part, slice(count, None)) if count < len(part.ids) else next(sources[place], None)
            if left is None:
                del waiting[place]
            else:
                waiting[place] = left
        yield _sorted(taken)


def _slices(stream: Iterable[RowData], size: int) -> Iterator[RowData]:
    for chunk in stream:
        for first in range(0, len(chunk.ids), size):
            yield _cut(chunk, slice(first, first + size))


def _cut(data: RowData, where: slice | torch.Tensor) -> RowData:
    scores = [None if column is None else column[where] for column in (data.touched, data.counts)]
    return RowData(data.ids[where], data.rows[where], {n: s[where] for n, s in data.state.items()}, *scores)


def _sorted(parts: Sequence[RowData]) -> RowData:
    first = parts[0]
    together = RowData(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.rows for part in parts]),
        {name: torch.cat([part.state[name] for part in parts]) for name in first.state},
        None if first.touched is None else torch.cat([_there(part.touched) for part in parts]),
        None if first.counts is None else torch.cat([_there(part.counts) for part in parts]),
    )
    return _cut(together, together.ids.argsort())


def _there(column: torch.Tensor | None) -> torch.Tensor:
    assert column is not None, "parts of a table have the same columns"
    return column
