"""Scores for rows of files and frames, in their order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from hybridrec.data.dataset import Dataset
from hybridrec.data.frame import check_inputs, frame_dataset, inputs_of
from hybridrec.data.open import table
from hybridrec.data.output import atomic_file
from hybridrec.data.place import nan_score, place_of
from hybridrec.data.schema import Schema
from hybridrec.train.evaluation import evaluating
from hybridrec.train.pass_through import PassThrough
from hybridrec.train.step import Learner


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
    dataset = _prepared(data, schema)
    if isinstance(columns, str):
        raise TypeError(f"columns is the string {columns!r}; it must be a list, such as [{columns!r}]")
    names = _score_names(schema)
    if out is None:
        if columns:
            raise ValueError("columns= go into the file of out=; without it predict gives the scores alone")
        parts = [scores.numpy() for scores in _scores(learner, dataset, data)]
        empty = np.empty((0,) if len(names) == 1 else (0, len(names)), np.float32)
        return np.concatenate(parts) if parts else empty
    carried = PassThrough(_whole(data, dataset.batch_size), columns)
    with atomic_file(out, force) as beside:
        return _write(beside, _scores(learner, dataset, data), names, carried)


def _prepared(data: Any, schema: Schema) -> Dataset:
    """The rows in their order with the inputs of the model, and no labels, which need not be there."""
    if not isinstance(data, Dataset):
        return frame_dataset(data, schema)
    if data.state_dict()["shuffle"] is not None:
        raise ValueError("scores are given in the order of the rows, but the dataset has shuffle(); leave it out")
    there = [feature.name for feature in data.schema]
    inputs = inputs_of(schema, there)
    check_inputs(inputs, there)
    return data.with_schema(inputs)


def _whole(data: Any, batch_size: int) -> Dataset:
    """All columns of the data."""
    if isinstance(data, Dataset):
        return data
    return table(pa.table(data) if isinstance(data, dict) else data, batch_size=batch_size)


def _scores(learner: Learner, dataset: Dataset, data: Any) -> Iterator[Tensor]:
    """The scores of each batch, on the CPU; one that is not a number is an error that names its row."""
    done = 0
    with evaluating(learner.model):
        for batch in dataset:
            outputs = learner.outputs(learner.moved(batch))
            scores = learner.loss.scores(outputs).float().cpu()
            if scores.isnan().any():
                row = int(scores.isnan().flatten(1 if scores.dim() > 1 else 0).nonzero()[0, 0])
                place = place_of(data, done + row) if isinstance(data, Dataset) else f"row {done + row}"
                raise nan_score(batch, row, place)
            done += len(batch)
            yield scores


def _score_names(schema: Schema) -> list[str]:
    labels = schema.of("label")
    return ["score"] if len(labels) < 2 else [f"score_{feature.name}" for feature in labels]


def _write(path: Any, parts: Iterator[Tensor], names: list[str], carried: PassThrough) -> int:
    writer, rows, fronts = None, 0, iter(carried)
    try:
        for scores in parts:
            made = {**next(fronts), **_columns(scores, names)}
            part = pa.table(made)
            writer = writer or pq.ParquetWriter(path, part.schema, compression="zstd")
            writer.write_table(part)
            rows += len(part)
        if writer is None:
            none = {name: pa.array([], pa.float32()) for name in names}
            pq.write_table(pa.table({**carried.empty(), **none}), path)
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
