"""The folder of a run: what was asked, what was planned, what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridrec.data.schema import Schema
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
