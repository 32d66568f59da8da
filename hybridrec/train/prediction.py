"""Scores for rows of files and frames, in their order."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hybridrec.data.dataset import Dataset
from hybridrec.data.frame import check_inputs, frame_dataset, inputs_of
from hybridrec.data.open import table
from hybridrec.data.output import atomic_file, check_no_input
from hybridrec.data.place import files_of, nan_score, place_of
from hybridrec.data.schema import Schema
from hybridrec.parallel.ranks import Ranks
from hybridrec.train.evaluation import evaluating
from hybridrec.train.pass_through import PassThrough
from hybridrec.train.step import Learner
from hybridrec.train.together import is_main
from hybridrec.types import Batch


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
    dataset, ranks = _prepared(data, schema), learner.ranks
    if ranks is not None:
        dataset = dataset.shard(ranks.rank, ranks.world, by="batch")  # every batch is shared, so they stay in order
    if isinstance(columns, str):
        raise TypeError(f"columns is the string {columns!r}; it must be a list, such as [{columns!r}]")
    names = _score_names(schema)
    if out is None:
        if columns:
            raise ValueError("columns= go into the file of out=; without it predict gives the scores alone")
        parts = [scores.numpy() for scores in scored(learner, dataset, data)]
        empty = np.empty((0,) if len(names) == 1 else (0, len(names)), np.float32)
        return np.concatenate(parts) if parts else empty
    check_no_input(out, files_of(data) if isinstance(data, Dataset) else ())
    carried = PassThrough(_whole(data, dataset.batch_size), columns)
    if not is_main(ranks):
        return sum(map(len, scored(learner, dataset, data)))
    # closed also where a column cannot be written: left open, it would leave the thread without gradients
    with closing(scored(learner, dataset, data)) as parts, atomic_file(out, force) as beside:
        return _write(beside, parts, names, carried)


def _prepared(data: Any, schema: Schema) -> Dataset:
    """The rows in their order with the inputs of the model, and no labels, which need not be there."""
    if not isinstance(data, Dataset):
        return frame_dataset(data, schema)
    if data.part.world > 1:
        raise ValueError("scores are given for all rows, but the dataset is the part of one rank; leave out shard()")
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
    return table(data, batch_size=batch_size)


def scored(learner: Learner, dataset: Dataset, data: Any) -> Generator[Tensor, None, None]:
    """The scores of each batch, on the CPU, of all ranks; one that is not a number is an error that names its row."""
    done, ranks = 0, learner.ranks
    with evaluating(learner.model):
        for batch in dataset:
            outputs = learner.outputs(learner.moved(batch))
            own = learner.loss.scores(outputs).float().cpu()
            parts = [own] if ranks is None else ranks.gathered(own)
            before = sum(map(len, parts[: 0 if ranks is None else ranks.rank]))
            if any(bool(part.isnan().any()) for part in parts):
                raise _of_ranks(ranks, _nan(own, batch, data, done + before))
            done += sum(map(len, parts))
            yield torch.cat(parts) if ranks is not None else own
        learner.settle()


def _nan(scores: Tensor, batch: Batch, data: Any, before: int) -> ValueError | None:
    """The error of the first score that is not a number, with so many rows before the batch; None without one."""
    if not scores.isnan().any():
        return None
    row = int(scores.isnan().flatten(1 if scores.dim() > 1 else 0).nonzero()[0, 0])
    place = place_of(data, before + row) if isinstance(data, Dataset) else f"row {before + row}"
    return nan_score(batch, row, place)


def _of_ranks(ranks: Ranks | None, error: ValueError | None) -> ValueError:
    """This rank's error, or else that of the first rank that has one."""
    told = [error] if ranks is None else ranks.all_told(None if error is None else str(error))
    return error or ValueError(next(each for each in told if each is not None))


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
