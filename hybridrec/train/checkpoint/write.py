"""Writes a checkpoint beside the others, and renames it into place when all of it is on the disk."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from hybridrec import __version__
from hybridrec.embedding.store import Capture as Rows
from hybridrec.embedding.store import RowData
from hybridrec.train.checkpoint import manifest as manifests
from hybridrec.train.checkpoint.capture import Capture
from hybridrec.train.checkpoint.manifest import FileInfo, Manifest
from hybridrec.train.checkpoint.part_info import PartInfo, sketch_file
from hybridrec.train.checkpoint.table_file import write_table
from hybridrec.train.checkpoint.table_info import TableInfo
from hybridrec.train.checkpoint.verify import problems_of_files
from hybridrec.train.checksum import checksums
from hybridrec.train.manifest_body import NAME

PART = ".part"
TENSORS = {"dense": "dense.safetensors", "optimizer": "optimizer.safetensors", "state": "state.safetensors"}
TREES = "state.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Label:
    """What a checkpoint is called and said to be."""

    step: int
    number: int
    best: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


def write(directory: Path, captured: Capture, label: Label) -> Path:
    """Write a checkpoint into the directory; where that fails, nothing of it stays there."""
    final = free_name(directory, label.step)
    part = final.with_name(final.name + PART)
    try:
        check_room(directory, captured.bytes)
        (part / "tables").mkdir(parents=True)
        _write_all(part, captured, label)
        put_in_place(part, final)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise explained(error, directory, label.step, captured.bytes) from error
        raise
    finally:
        captured.close()
    return final


def put_in_place(part: Path, final: Path) -> None:
    """Give a folder that is complete its name."""
    os.rename(part, final)
    _sync(final.parent)


def free_name(directory: Path, step: int) -> Path:
    """A name that no checkpoint has: the second one of a step ends in -1."""
    name = directory / f"step-{step:09d}"
    again = 0
    while name.exists():
        again += 1
        name = directory / f"step-{step:09d}-{again}"
    return name


class Files:
    """The files of a checkpoint in the making, each on the disk when it is listed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.infos: dict[str, FileInfo] = {}

    def put(self, name: str, make: Callable[[Path], None]) -> None:
        """Have a file made, and list it."""
        make(self.folder / name)
        _sync(self.folder / name)
        self.infos[name] = FileInfo((self.folder / name).stat().st_size, checksums(self.folder / name))


def _write_all(part: Path, captured: Capture, label: Label) -> None:
    """The files, the manifest last; all of it is on the disk afterwards."""
    files = Files(part)
    tables = write_tables(files, captured)
    write_rest(files, captured)
    finish(part, make_manifest(tables, label, files.infos))


def write_tables(files: Files, captured: Capture) -> dict[str, TableInfo]:
    """The rows that are captured, and their counts for admission."""
    tables, rank = dict(captured.tables), 0
    for name, held in captured.rows.items():
        written: list[int] = []
        part = captured.part(name)
        chunks = _saved_once(held, part)
        files.put(part.file, lambda path, chunks=chunks, written=written: written.append(write_table(path, chunks)))
        held.close()
        rank = part.rank
        tables[name] = replace(tables[name], parts=(replace(part, rows=written[0]),))
    if captured.sketches:
        files.put(sketch_file(rank), lambda path: _write_tensors(path, captured.sketches))
    return tables


def _saved_once(held: Rows, part: PartInfo) -> Iterator[RowData]:
    """The rows of a part; what belongs to whole rows is left to the part that has their first columns."""
    columns = held.rule.state if held.rule is not None else ()
    kept = {column.name for column in columns if not (column.per_row and part.share.column)}
    for chunk in held.chunks():
        yield chunk._replace(state={name: values for name, values in chunk.state.items() if name in kept})


def write_rest(files: Files, captured: Capture) -> None:
    """All but the tables and the manifest."""
    groups = {"dense": captured.dense, "optimizer": captured.optimizer_tensors, "state": captured.state_tensors}
    for name, tensors in groups.items():
        files.put(TENSORS[name], lambda path, tensors=tensors: _write_tensors(path, tensors))
    text = json.dumps(captured.trees, ensure_ascii=False, allow_nan=False)
    files.put(TREES, lambda path: _write_text(path, text))


def finish(part: Path, made: Manifest) -> None:
    """Write the manifest of a folder whose other files are there, and see that all reads as it should."""
    _write_text(part / NAME, manifests.to_text(made))
    _sync(part / NAME)
    _sync(part / "tables")
    _sync(part)
    found = problems_of_files(part, manifests.read_manifest(part))
    if found:
        raise OSError(errno.EIO, f"what was written does not read as it should, {found[0]}")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    except KeyError as error:
        raise TypeError(f"{path.name} has a tensor of {error}, which safetensors has no form for; convert it") from None


def make_manifest(
    tables: Mapping[str, TableInfo], label: Label, files: Mapping[str, FileInfo], ranks: int = 1
) -> Manifest:
    """What is to be known of a checkpoint with these files."""
    return Manifest(
        step=label.step,
        number=label.number,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        best=label.best,
        metrics={name: float(value) if math.isfinite(value) else None for name, value in label.metrics.items()},
        versions={"hybridrec": __version__, "torch": torch.__version__, "pyarrow": pa.__version__},
        files=dict(files),
        tables=dict(tables),
        ranks=ranks,
    )


def _sync(path: Path) -> None:
    """Have the file or folder written to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def check_room(directory: Path, needed: int) -> None:
    """Raise where the disk has no room for so many bytes."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed and {free:,} are free")


def explained(error: OSError, directory: Path, step: int, size: int) -> OSError:
    """The error with what it means and what to do."""
    remedy = "free some space, or keep fewer checkpoints" if error.errno in FULL else "see to the disk"
    text = (
        f"the checkpoint of step {step} (about {size:,} bytes) could not be written to {directory}: "
        f"{error.strerror or error}; {remedy}, and save again. Older checkpoints are as they were"
    )
    return OSError(error.errno or errno.EIO, text)
