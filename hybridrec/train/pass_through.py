"""Columns of the data that travel beside the scores as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from hybridrec.data.dataset import Dataset
from hybridrec.data.decode import Decoder
from hybridrec.data.schema import NULL_ID, Feature, Schema
from hybridrec.types import Batch, Ragged


class PassThrough:
    """These columns, untransformed, in batches of the dataset's size and order.

    They are read beside the features, from the columns alone. A null text or list comes as an empty one, a null number
    of a float column as NaN; null whole numbers, bools and times stay null.
    """

    def __init__(self, dataset: Dataset, names: Sequence[str]) -> None:
        self._features = [_raw(dataset, name) for name in names]
        self._dataset = dataset.with_schema(Schema(self._features))

    def __iter__(self) -> Iterator[dict[str, pa.Array]]:
        if not self._features:
            yield from repeat({})
        for batch in self._dataset:
            yield self._columns(batch)

    def empty(self) -> dict[str, pa.Array]:
        """The columns without a row, in their types."""
        return self._columns(Decoder(self._dataset.schema).empty())

    def _columns(self, batch: Batch) -> dict[str, pa.Array]:
        return {feature.name: _column(batch, feature) for feature in self._features}


def _raw(dataset: Dataset, name: str) -> Feature:
    if name not in dataset.schema or dataset.schema[name].cross is not None:
        stored = [feature.name for feature in dataset.schema if feature.cross is None]
        raise ValueError(f"no column {name!r} to pass through; the data has {', '.join(stored)}")
    feature = dataclasses.replace(
        dataset.schema[name], kind="extra", null="", default=None, transforms=(), weights=None, size=None
    )
    if pt.is_integer(feature.type) or pt.is_boolean(feature.type) or pt.is_temporal(feature.type):
        return dataclasses.replace(feature, kind="id", null="id")
    if pt.is_floating(feature.type):
        return dataclasses.replace(feature, null="default", default=float("nan"))
    return feature


def _column(batch: Batch, feature: Feature) -> pa.Array:
    if feature.kind == "id":
        values = batch.ids.matrix(feature.name)[:, 0].numpy()
        nulls = values == NULL_ID
        stored = values.view(np.uint64) if feature.type == pa.uint64() else values
        return _stored(pa.array(stored, mask=nulls), feature.type)
    column = batch.extra[feature.name]
    if isinstance(column, Ragged):
        return column.to_arrow()
    return pa.array(column.numpy()).cast(feature.type)


def _stored(whole: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers as what they were made of; times are stored as whole numbers of their width."""
    if pt.is_temporal(kind) and kind.bit_width == 32:
        whole = whole.cast(pa.int32())
    return whole.cast(kind, safe=False)
