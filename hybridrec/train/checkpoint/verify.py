"""Finds damage: files that are missing, cut off or changed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from safetensors import SafetensorError, safe_open

from hybridrec.train.checkpoint.manifest import FileInfo, Manifest, read_manifest
from hybridrec.train.checkpoint.table_file import open_table
from hybridrec.train.checksum import damaged
from hybridrec.train.manifest_body import NAME, CheckpointError


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file of a checkpoint."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def verify(path: Path | str) -> list[Problem]:
    """Everything that is wrong with a checkpoint; it reads all of it. An empty list is good news.

    >>> verify("/no/such/checkpoint")
    [Problem(file='manifest.json', what='/no/such/checkpoint has no manifest.json, so it is no checkpoint; ...')]
    """
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return [Problem(NAME, str(error))]
    return [*problems_of_files(folder, manifest, sums=manifest.files), *_strangers(folder, manifest)]


def problems_of_files(folder: Path, manifest: Manifest, *, sums: Container[str] = ()) -> list[Problem]:
    """Files that are missing, of another size or not readable; the content of those in `sums` is read and checked."""
    found = []
    for name, info in manifest.files.items():
        what = _wrong(folder / name, info, name in sums)
        if what is None:
            what = _unreadable(folder / name)
        if what is not None:
            found.append(Problem(name, what))
    listed = {part.file: name for name, info in manifest.tables.items() for part in info.parts}
    absent = [
        Problem(file, f"table {name} has no such file") for file, name in listed.items() if file not in manifest.files
    ]
    return found + absent


def _wrong(path: Path, info: FileInfo, sums: bool) -> str | None:
    try:
        size = path.stat().st_size if path.is_file() else None
    except FileNotFoundError:  # another process has just removed it
        size = None
    if size is None:
        return "it is missing"
    if size != info.bytes:
        return f"it has {size:,} bytes, and {info.bytes:,} were written: it was {_how(size, info.bytes)}"
    return damaged(path, info.xxh64) if sums else None


def _how(size: int, wanted: int) -> str:
    return "cut off" if size < wanted else "changed"


def _unreadable(path: Path) -> str | None:
    try:
        if path.suffix == ".arrow":
            open_table(path)
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt"):
                pass
    except (pa.ArrowException, SafetensorError, OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    return None


def _strangers(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != NAME and name not in manifest.files:
            yield Problem(name, "the manifest does not know it; it can be deleted")
