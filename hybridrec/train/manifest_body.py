"""The manifest of a checkpoint as JSON values: that it is one, of a known version, and whole. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridrec import _native

NAME = "manifest.json"
FORMAT = "hybridrec-checkpoint"
VERSION = 3  # 2 had no shares of servers, 1 one file for each table


class CheckpointError(ValueError):
    """A checkpoint is damaged, of a newer format, or does not fit what it is loaded into."""


class NewerFormatError(CheckpointError):
    """A checkpoint was written by a later version, whose format this one does not know."""


def read_body(path: Path | str) -> dict[str, Any]:
    """The manifest of the checkpoint in this folder; CheckpointError where there is none that this version reads.

    >>> import tempfile
    >>> read_body(tempfile.mkdtemp())
    Traceback (most recent call last):
    hybridrec.train.manifest_body.CheckpointError: ... has no manifest.json, so it is no checkpoint; ...
    """
    file = Path(path) / NAME
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} has no {NAME}, so it is no checkpoint; {_remedy(Path(path))}") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged ({error}); load another checkpoint") from None
    _check(file, body)
    return body


def _remedy(path: Path) -> str:
    found = [path.glob(f"{folder}step-*/{NAME}") for folder in ("", "checkpoints/")] if path.is_dir() else []
    inside = sorted(str(part.parent.relative_to(path)) for parts in found for part in parts)
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
    if body.get("xxh64") != checksum(content):
        raise CheckpointError(f"{file} is damaged: its checksum differs; load another checkpoint")


def _versions(body: Mapping[str, Any]) -> Mapping[str, str]:
    found = body.get("versions")
    return found if isinstance(found, Mapping) else {}


def checksum(body: Mapping[str, Any]) -> str:
    """XXH64 of all entries but that of the checksum."""
    plain = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{_native.xxh64(plain.encode()):016x}"
