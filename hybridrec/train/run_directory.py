"""The folder of a run: what was asked, what was planned, what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridrec.data.schema import Schema
from hybridrec.remedy import remedied
from hybridrec.train import history
from hybridrec.train.history import Record


class RunDirectory:
    """`runs/a/`: config.json, schema.json, plan.json, environment.json, metrics.jsonl, checkpoints/, report.html.

    >>> import tempfile
    >>> run = RunDirectory(tempfile.mkdtemp())
    >>> run.append({"kind": "train", "step": 1, "loss": 0.7})
    >>> run.records()
    [{'kind': 'train', 'step': 1, 'loss': 0.7}]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; a run needs a folder of its own")

    def check_place(self) -> None:
        """Refuse a place where no folder can be written, as far as that is seen without trying."""
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not there.is_dir():
            raise self._refused(f"{there} is a file")
        if not os.access(there, os.W_OK | os.X_OK):
            raise self._refused(f"{there} cannot be written to")

    def prepare(self) -> None:
        """Make the folder, and try to write there: a run that could not be saved should not begin."""
        self.check_place()
        for folder in (self.path, self.checkpoints):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / ".tried").touch()
                (folder / ".tried").unlink()
            except OSError as error:
                raise self._refused(f"{folder}: {error.strerror or error}") from error

    def _refused(self, why: str) -> OSError:
        return remedied(
            OSError,
            f"the run cannot be kept in {self.path}: {why}",
            call="give a folder that you may write to as out=",
            setting="give a folder that you may write to as --out",
        )

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def write(self, name: str, values: Any) -> None:
        """Write a JSON file, whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        beside = self.path / f".{name}.part"
        beside.write_text(json.dumps(values, indent=1) + "\n")
        os.replace(beside, self.path / name)

    def read(self, name: str) -> Any:
        """The values of a JSON file of this run."""
        path = self.path / name
        if (self.path / "dense.pt2").exists():
            raise ValueError(
                f"{self.path} is an exported model; hybridrec.serve.load reads it, and here a run is wanted"
            )
        if not path.exists():
            raise FileNotFoundError(f"{self.path} has no {name}; is it the folder of a run (out=, --out)?")
        return json.loads(path.read_text())

    def write_schema(self, schema: Schema) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        schema.save(self.path / "schema.json")

    def schema(self) -> Schema:
        """What the columns of the training data were."""
        if not (self.path / "schema.json").exists():
            raise FileNotFoundError(f"{self.path} has no schema.json; is it the folder of a run (out=, --out)?")
        return Schema.load(self.path / "schema.json")

    # -- metrics.jsonl --------------------------------------------------------------------------------------

    def append(self, record: Mapping[str, Any]) -> None:
        """One more record, as a line."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.metrics.open("a") as file:
            file.write(history.line_of(dict(record)) + "\n")

    def records(self) -> list[Record]:
        """All whole records."""
        return history.read(self.metrics)

    def keep_records(self, count: int) -> list[Record]:
        """Drop what was written after the first `count` records: a resumed run writes it again."""
        kept = self.records()[:count]
        beside = self.path / ".metrics.jsonl.part"
        beside.write_text("".join(history.line_of(record) + "\n" for record in kept))
        os.replace(beside, self.metrics)
        return kept
