"""The manifest of a checkpoint: its format, its files with their checksums, and what each table is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hybridrec import _native
from hybridrec.train.checkpoint.table_info import TableInfo

NAME = "manifest.json"
FORMAT = "hybridrec-checkpoint"
VERSION = 2  # 1 had one file for each table


class CheckpointError(ValueError):
    """A checkpoint is damaged, of a newer format, or does not fit what it is loaded into."""


class NewerFormatError(CheckpointError):
    """A checkpoint was written by a later version, whose format this one does not know."""


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
    return json.dumps({**body, "xxh64": _sum(body)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_manifest(path: Path | str) -> Manifest:
    """The manifest of the checkpoint in this folder; CheckpointError where there is none that this version reads.

    >>> import tempfile
    >>> read_manifest(tempfile.mkdtemp())
    Traceback (most recent call last):
    hybridrec.train.checkpoint.manifest.CheckpointError: ... has no manifest.json, so it is no checkpoint; ...
    """
    file = Path(path) / NAME
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} has no {NAME}, so it is no checkpoint; {_remedy(Path(path))}") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged ({error}); load another checkpoint") from None
    _check(file, body)
    return _made(file, body)


def _remedy(path: Path) -> str:
    inside = sorted(part.parent.name for part in path.glob(f"step-*/{NAME}")) if path.is_dir() else []
    return (
        f"it holds {', '.join(inside)}: give one of them"
        if inside
        else "give a folder such as runs/a/checkpoints/step-000000100"
    )


def _check(file: Path, body: Any) -> None:
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise CheckpointError(f"{file} is not the manifest of a checkpoint: its format is not {FORMAT!r}")
    version = body.get("version")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{file}: version is {version!r}; it must be a whole number from 1 on")
    if version > VERSION:
        raise NewerFormatError(
            f"{file.parent} has format version {version}, and this hybridrec reads up to {VERSION}; it was written by "
            f"hybridrec {_versions(body).get('hybridrec', '?')}: install that version or a later one"
        )
    content = {name: value for name, value in body.items() if name != "xxh64"}
    if body.get("xxh64") != _sum(content):
        raise CheckpointError(f"{file} is damaged: its checksum differs; load another checkpoint")


def _versions(body: Mapping[str, Any]) -> Mapping[str, str]:
    found = body.get("versions")
    return found if isinstance(found, Mapping) else {}


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


def _sum(body: Mapping[str, Any]) -> str:
    plain = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{_native.xxh64(plain.encode()):016x}"
