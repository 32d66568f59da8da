"""Rows of a checkpoint, for a server that answers and does not learn. Needs pyarrow, not torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridrec.server.declaration import Declaration
from hybridrec.server.placement import owners
from hybridrec.server.rows import RowArrays, Rows
from hybridrec.server.wire_types import on_wire
from hybridrec.train.checksum import damaged
from hybridrec.train.manifest_body import CheckpointError, read_body


def saved_tables(folder: Path, number: int, count: int) -> dict[str, Rows]:
    """What server `number` of `count` has of every table of a checkpoint, by its name there; damage is an error."""
    body = read_body(folder)
    return {name: _table(folder, name, info, body["files"], number, count) for name, info in body["tables"].items()}


def _table(folder: Path, name: str, info: Mapping[str, Any], files: Mapping[str, Any], number: int, count: int) -> Rows:
    parts = info.get("parts") or [{"file": info["file"], "share": {}}]  # version 1: one file
    if any(part["share"].get("column") or part["share"].get("width") for part in parts):
        raise CheckpointError(
            f"{folder}: table {name!r} was saved by columns, which a server does not put together; write whole tables "
            "with hybridrec checkpoint export, or save it from another plan"
        )
    for part in parts:
        _check(folder / part["file"], files[part["file"]])
    mine = [_mine(chunk, number, count) for part in parts for chunk in _chunks(folder / part["file"], info["dim"])]
    size = sum(len(chunk.ids) for chunk in mine)
    rows = Rows(Declaration(name, info["dim"], max(size, 1), dtype=info["dtype"], eviction="none"), 1)
    rows.empty_for(size, None)
    for chunk in mine:
        rows.append(chunk._replace(rows=_in_memory(chunk.rows, info["dtype"])))
    rows.filled()
    return rows


def _check(path: Path, info: Mapping[str, Any]) -> None:
    if not path.is_file() or path.stat().st_size != info["bytes"]:
        raise CheckpointError(f"{path} is missing or cut off; load another checkpoint")
    if (what := damaged(path, info["xxh64"])) is not None:
        raise CheckpointError(f"{path}: {what}; load another checkpoint")


def _chunks(path: Path, dim: int) -> Iterator[RowArrays]:
    """The rows of a file, in views of it."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        for batch in pa.ipc.open_file(file).read_all().to_batches():
            ids = batch.column("id").to_numpy(zero_copy_only=True)
            flat = batch.column("row").flatten().to_numpy(zero_copy_only=True)
            yield RowArrays(ids, flat.reshape(-1, dim), {})


def _mine(chunk: RowArrays, number: int, count: int) -> RowArrays:
    """Those that belong to this server."""
    if count == 1:
        return chunk
    here = owners(chunk.ids, count) == number
    return RowArrays(chunk.ids[here], chunk.rows[here], {})


def _in_memory(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of bfloat16 are saved as float32."""
    return on_wire(rows, "bfloat16") if dtype == "bfloat16" else rows
