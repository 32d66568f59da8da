"""Predictor: an exported model, ready to give scores."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridrec.data.frame import frame_dataset, inputs_of
from hybridrec.data.place import nan_score
from hybridrec.data.schema import Schema
from hybridrec.embedding import EmbeddingCollection
from hybridrec.serve import manifest, table_file, table_json
from hybridrec.serve.dense_part import give, scores_of
from hybridrec.serve.manifest import CollectionEntry, Manifest
from hybridrec.types import Batch

BATCH_ROWS = 8192


def load(folder: str | os.PathLike[str], *, verify: bool = True) -> Predictor:
    """The model in a folder that `export` wrote. `verify` compares all files with their checksums first.

    Exported programs run as they were traced, so load only what comes from people you trust.

    >>> import tempfile, hybridrec as hr
    >>> from hybridrec.models import DeepFM
    >>> from hybridrec.serve import export
    >>> ds = hr.data.table({"user": [1, 2, 3], "click": [0, 1, 0]}, label="click", batch_size=3)
    >>> predictor = load(export(DeepFM(ds.schema, dim=4), tempfile.mkdtemp()))
    >>> predictor.predict({"user": [2, 77]}).shape
    (2,)
    """
    path = Path(folder)
    found = manifest.read(path)
    if verify:
        manifest.verify(path, found)
    collections = [_collection(path, entry) for entry in found.collections]
    return Predictor(found, Schema.load(path / "schema.json"), collections, _program(path / "dense.pt2"))


def _collection(folder: Path, entry: CollectionEntry) -> EmbeddingCollection:
    tables = [table_json.from_json(table.declared, table.rows) for table in entry.tables]
    made = EmbeddingCollection(tables, seed=entry.seed)
    for table in entry.tables:
        table_file.fill(made[table.declared["name"]], folder / table.file)
    return made.eval()


def _program(path: Path) -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.11 tells itself, when it loads
        return torch.export.load(path).module()


def _check(parts: list[np.ndarray], batch: Batch) -> None:
    """Refuse scores of the last batch that are not numbers, and name their row."""
    if np.isnan(parts[-1]).any():
        row = int(np.isnan(parts[-1]).nonzero()[0][0])
        raise nan_score(batch, row, f"row {sum(map(len, parts[:-1])) + row}")


class Predictor:
    """Scores for frames and batches. It reads tables and never changes them, so threads may share one."""

    def __init__(
        self, found: Manifest, schema: Schema, collections: list[EmbeddingCollection], program: nn.Module
    ) -> None:
        self.manifest, self.schema, self.labels = found, schema, found.labels
        self._inputs = inputs_of(schema)
        self._collections, self._program = collections, program

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `predict` reads; those with a default in the schema may be missing."""
        return tuple(feature.name for feature in self._inputs if feature.cross is None)

    def predict(self, frame: Any, *, batch_size: int = BATCH_ROWS) -> np.ndarray:
        """Scores of a frame (pandas, polars, pyarrow, dict of columns), in order: [n], or [n, k] for k labels."""
        parts: list[np.ndarray] = []
        for batch in frame_dataset(frame, self._inputs, batch_size):
            parts.append(self(batch).numpy())
            _check(parts, batch)
        if parts:
            return np.concatenate(parts)
        return np.empty((0,) if len(self.labels) < 2 else (0, len(self.labels)), np.float32)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Scores of a batch, as `hybridrec.data` loads it with the model's schema."""
        inputs = [part for collection in self._collections for part in give(collection(batch.ids))]
        return scores_of(self._program, [*inputs, batch.dense])

    def __repr__(self) -> str:
        rows = sum(table.rows for entry in self.manifest.collections for table in entry.tables)
        tables = sum(len(entry.tables) for entry in self.manifest.collections)
        labels = ", ".join(self.labels) or "none"
        return f"Predictor({self.manifest.model}, labels: {labels}; {tables} tables, {rows:,} rows)"
