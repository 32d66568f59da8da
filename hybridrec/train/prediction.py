"""Scores for rows of files and frames, in their order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from hybridrec.data import table
from hybridrec.data.dataset import Dataset
from hybridrec.data.formats import as_table
from hybridrec.data.output import atomic_file
from hybridrec.data.schema import Schema
from hybridrec.train.evaluation import evaluating
from hybridrec.train.pass_through import pass_through
from hybridrec.train.step import Learner

BATCH_ROWS = 8192


def predict(
    learner: Learner,
    data: Any,
    schema: Schema,
    *,
    out: str | os.PathLike[str] | None = None,
    columns: Sequence[str] = (),
    force: bool = False,
) -> np.ndarray | int:
    """Scores of a Dataset, or of a frame (pandas, polars, pyarrow, dict), row by row in their order.

    Without `out` they come as an array [n], or [n, k] for k labels. With it they go to a Parquet file, with the
    `columns` of the data that are named in front, and the number of rows is returned. Labels need not be there.
    """
    dataset = data if isinstance(data, Dataset) else from_frame(data, schema)
    if isinstance(columns, str):
        raise TypeError(f"columns is the string {columns!r}; it must be a list, such as [{columns!r}]")
    names = _score_names(schema)
    if out is None:
        if columns:
            raise ValueError("columns= go into the file of out=; without it predict gives the scores alone")
        parts = [scores.numpy() for scores in _scores(learner, prepared(dataset, schema))]
        empty = np.empty((0,) if len(names) == 1 else (0, len(names)), np.float32)
        return np.concatenate(parts) if parts else empty
    carried = pass_through(dataset, columns) if columns else None
    with atomic_file(out, force) as beside:
        return _write(beside, _scores(learner, prepared(dataset, schema)), names, carried)


def prepared(dataset: Dataset, schema: Schema) -> Dataset:
    """The dataset in file order with the inputs of the model, and no labels, which need not be there."""
    if dataset.state_dict()["shuffle"] is not None:
        raise ValueError("scores are given in the order of the rows, but the dataset has shuffle(); leave it out")
    inputs = inputs_of(schema)
    missing = [f for f in inputs if f.cross is None and f.name not in dataset.schema and f.default is None]
    if missing:
        first, have = missing[0], ", ".join(feature.name for feature in dataset.schema)
        raise ValueError(
            f"the data has no column {', '.join(repr(feature.name) for feature in missing)}, which the model was "
            f"trained with ({first.name}: {first.kind}, {first.type}); it has {have}. Add it, or "
            "train with a default= for it in the schema"
        )
    return dataset.with_schema(inputs)


def inputs_of(schema: Schema) -> Schema:
    """The schema without labels and sample weights."""
    return Schema(feature for feature in schema if feature.kind not in ("label", "weight"))


def from_frame(frame: Any, schema: Schema, batch_size: int = BATCH_ROWS) -> Dataset:
    """A dataset of a frame, whose columns are cast to the types that the model was trained with."""
    found = pa.table(frame) if isinstance(frame, dict) else as_table(frame)
    for feature in schema:
        if feature.name in found.column_names and feature.cross is None:
            at = found.column_names.index(feature.name)
            if found.column(at).type == feature.type:
                continue
            try:
                found = found.set_column(at, feature.name, found.column(at).cast(feature.type))
            except pa.ArrowException as error:
                raise ValueError(
                    f"column {feature.name!r} is {found.column(at).type}, but was {feature.type} in training, and "
                    f"cannot be cast to it: {error}"
                ) from None
    return table(found, batch_size=batch_size)


def _scores(learner: Learner, dataset: Dataset) -> Iterator[Tensor]:
    """The scores of each batch, on the CPU."""
    with evaluating(learner.model):
        for batch in dataset:
            outputs = learner.outputs(learner.moved(batch))
            yield learner.loss.scores(outputs).float().cpu()


def _score_names(schema: Schema) -> list[str]:
    labels = schema.of("label")
    return ["score"] if len(labels) < 2 else [f"score_{feature.name}" for feature in labels]


def _write(path: Any, parts: Iterator[Tensor], names: list[str], carried: Iterator[pa.Table] | None) -> int:
    writer, rows = None, 0
    try:
        for scores in parts:
            made = _columns(scores, names)
            if carried is not None:
                made = {**dict(zip((front := next(carried)).column_names, front.columns, strict=True)), **made}
            part = pa.table(made)
            writer = writer or pq.ParquetWriter(path, part.schema, compression="zstd")
            writer.write_table(part)
            rows += len(part)
        if writer is None:
            pq.write_table(pa.table({name: pa.array([], pa.float32()) for name in names}), path)
    finally:
        if writer is not None:
            writer.close()
    return rows


def _columns(scores: Tensor, names: list[str]) -> dict[str, pa.Array]:
    if scores.dim() == 1:
        return {names[0]: pa.array(scores.numpy())}
    if scores.shape[1] != len(names):  # classes of one label
        names = [f"{names[0]}_{at}" for at in range(scores.shape[1])]
    return {name: pa.array(np.ascontiguousarray(scores[:, at].numpy())) for at, name in enumerate(names)}
