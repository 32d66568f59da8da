"""Writes a checkpoint beside the others, and renames it into place when all of it is on the disk."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from hybridrec import __version__
from hybridrec.train.checkpoint import manifest as manifests
from hybridrec.train.checkpoint.capture import Capture
from hybridrec.train.checkpoint.checksum import checksums
from hybridrec.train.checkpoint.manifest import FileInfo, Manifest
from hybridrec.train.checkpoint.table_file import write_table
from hybridrec.train.checkpoint.table_info import TableInfo
from hybridrec.train.checkpoint.verify import problems_of_files

PART = ".part"
TENSORS = {"dense": "dense.safetensors", "optimizer": "optimizer.safetensors", "state": "state.safetensors"}
SKETCHES, TREES = "sketches.safetensors", "state.json"
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
    final = _free_name(directory, label.step)
    part = final.with_name(final.name + PART)
    try:
        _check_room(directory, captured.bytes)
        (part / "tables").mkdir(parents=True)
        _write_all(part, captured, label)
        os.rename(part, final)
        _sync(directory)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise _explained(error, directory, captured, label) from error
        raise
    finally:
        captured.close()
    return final


def _free_name(directory: Path, step: int) -> Path:
    """A name that no checkpoint has: the second one of a step ends in -1."""
    name = directory / f"step-{step:09d}"
    again = 0
    while name.exists():
        again += 1
        name = directory / f"step-{step:09d}-{again}"
    return name


def _write_all(part: Path, captured: Capture, label: Label) -> None:
    """The files, the manifest last; all of it is on the disk afterwards."""
    files: dict[str, FileInfo] = {}

    def put(name: str, make: Callable[[Path], None]) -> None:
        make(part / name)
        _sync(part / name)
        files[name] = FileInfo((part / name).stat().st_size, checksums(part / name))

    tables: dict[str, TableInfo] = {}
    for name, (info, held) in captured.tables.items():
        written: list[int] = []
        put(info.file, lambda path, held=held, written=written: written.append(write_table(path, held.chunks())))
        held.close()
        tables[name] = replace(info, rows=written[0])
    groups = {"dense": captured.dense, "optimizer": captured.optimizer_tensors, "state": captured.state_tensors}
    for name, tensors in groups.items():
        put(TENSORS[name], lambda path, tensors=tensors: _write_tensors(path, tensors))
    if captured.sketches:
        put(SKETCHES, lambda path: _write_tensors(path, captured.sketches))
    text = json.dumps(captured.trees, ensure_ascii=False, allow_nan=False)
    put(TREES, lambda path: _write_text(path, text))
    made = _manifest(tables, label, files)
    _write_text(part / manifests.NAME, manifests.to_text(made))
    _sync(part / manifests.NAME)
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


def _manifest(tables: Mapping[str, TableInfo], label: Label, files: Mapping[str, FileInfo]) -> Manifest:
    return Manifest(
        step=label.step,
        number=label.number,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        best=label.best,
        metrics={name: float(value) if math.isfinite(value) else None for name, value in label.metrics.items()},
        versions={"hybridrec": __version__, "torch": torch.__version__, "pyarrow": pa.__version__},
        files=dict(files),
        tables=dict(tables),
    )


def _sync(path: Path) -> None:
    """Have the file or folder written to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _check_room(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed and {free:,} are free")


def _explained(error: OSError, directory: Path, captured: Capture, label: Label) -> OSError:
    """The error with what it means and what to do."""
    remedy = "free some space, or keep fewer checkpoints" if error.errno in FULL else "see to the disk"
    text = (
        f"the checkpoint of step {label.step} (about {captured.bytes:,} bytes) could not be written to {directory}: "
        f"{error.strerror or error}; {remedy}, and save again. Older checkpoints are as they were"
    )
    return OSError(error.errno or errno.EIO, text)
