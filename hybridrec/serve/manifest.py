"""The manifest of an exported model: what is in the folder, and checksums to know it by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class TableEntry:
    """A table: its declaration as JSON values, and the file that holds its rows."""

    declared: dict[str, Any]
    file: str
    rows: int


@dataclass(frozen=True)
class CollectionEntry:
    """A collection, by its path in the model; its tables in order."""

    path: str
    seed: int
    tables: tuple[TableEntry, ...]


@dataclass(frozen=True)
class FileEntry:
    """The size and the SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that a loader needs beside the files themselves."""

    model: str
    labels: tuple[str, ...]
    collections: tuple[CollectionEntry, ...]
    versions: dict[str, str]
    files: dict[str, FileEntry]
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest:
    """The manifest of a folder; a newer format, or a folder that is none, is an error that says so."""
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{folder} holds no exported model (no {NAME}); make one with: hybridrec export RUN --out DIR")
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        found = made["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); export the model again") from None
    if found != FORMAT:
        raise ValueError(
            f"{path} has format {found}; this release reads format {FORMAT}. Update hybridrec, or export again"
        )
    collections = tuple(
        CollectionEntry(each["path"], each["seed"], tuple(TableEntry(**table) for table in each["tables"]))
        for each in made["collections"]
    )
    files = {name: FileEntry(**entry) for name, entry in made["files"].items()}
    return Manifest(made["model"], tuple(made["labels"]), collections, made["versions"], files)


def describe(folder: Path, names: Sequence[str]) -> dict[str, FileEntry]:
    """Size and checksum of these files."""
    return {name: FileEntry((folder / name).stat().st_size, _sha256(folder / name)) for name in names}


def verify(folder: Path, manifest: Manifest) -> None:
    """Raise where a file is missing, has another size, or other bytes than were written."""
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing; copy the whole folder, or export the model again")
        if (found := path.stat().st_size) != entry.bytes:
            raise ValueError(f"{path} has {found:,} bytes in place of {entry.bytes:,}; copy it again, or export again")
        if _sha256(path) != entry.sha256:
            raise ValueError(f"{path} has other content than was exported; copy it again, or export again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
