"""The manifest of a checkpoint: its format, its files with their checksums, and what each table is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hybridrec.train.checkpoint.table_info import TableInfo
from hybridrec.train.manifest_body import FORMAT, NAME, VERSION, CheckpointError, checksum, read_body


@dataclass(frozen=True)
class FileInfo:
    """Bytes of a file, and the XXH64 of each block of it."""

    bytes: int
    xxh64: list[str]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. `number` counts the checkpoints of a folder in the order in which they were written."""

    step: int
    number: int
    created: str
    best: bool = False
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # None where not a finite number
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileInfo] = field(default_factory=dict)
    tables: Mapping[str, TableInfo] = field(default_factory=dict)
    ranks: int = 1  # that wrote it

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        tables = {name: info.to_json() for name, info in self.tables.items()}
        return {**asdict(replace(self, tables={})), "tables": tables}


def to_text(manifest: Manifest) -> str:
    """The manifest as JSON. Its last entry is the checksum of what stands before."""
    body = {"format": FORMAT, "version": VERSION, **manifest.to_json()}
    return json.dumps({**body, "xxh64": checksum(body)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_manifest(path: Path | str) -> Manifest:
    """The manifest of the checkpoint in this folder; CheckpointError where there is none that this version reads.

    >>> import tempfile
    >>> read_manifest(tempfile.mkdtemp())
    Traceback (most recent call last):
    hybridrec.train.manifest_body.CheckpointError: ... has no manifest.json, so it is no checkpoint; ...
    """
    return _made(Path(path) / NAME, read_body(path))


def _made(file: Path, body: dict[str, Any]) -> Manifest:
    known = {part.name for part in fields(Manifest)}
    given = {name: value for name, value in body.items() if name not in ("format", "version", "xxh64")}
    if strange := sorted(given.keys() - known):
        raise CheckpointError(f"{file} has unknown entries {', '.join(strange)}; valid are {', '.join(sorted(known))}")
    try:
        files = {name: FileInfo(**info) for name, info in given.pop("files").items()}
        tables = {name: TableInfo.from_json(info) for name, info in given.pop("tables").items()}
        return Manifest(**given, files=files, tables=tables)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is not what version {VERSION} writes: {error}") from None
