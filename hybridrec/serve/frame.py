"""From a frame of somebody's to the batches that a model was trained on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hybridrec.data import Dataset, Schema, table
from hybridrec.data.formats import as_table


def batches(frame: Any, schema: Schema, batch_size: int) -> Dataset:
    """The rows of a frame (pandas, polars, pyarrow, dict) in order, read by `schema`, which is that of `inputs`.

    >>> schema = inputs(Schema.infer(pa.schema({"user": pa.int64(), "click": pa.int8()}), label="click"))
    >>> [batch.ids["user"].to_list() for batch in batches({"user": [5, 6]}, schema, 10)]
    [[[5], [6]]]
    """
    found = pa.table(frame) if isinstance(frame, dict) else as_table(frame)
    missing = [f for f in schema if f.cross is None and f.name not in found.column_names and f.default is None]
    if missing:
        first = missing[0]
        raise ValueError(
            f"the frame has no column {', '.join(repr(each.name) for each in missing)}, which the model was trained "
            f"with ({first.name}: {first.kind}, {first.type}); it has {', '.join(found.column_names) or 'none'}. "
            "Add it, or train with a default= for it in the schema"
        )
    return table(_cast(found, schema), batch_size=batch_size, schema=schema)


def inputs(schema: Schema) -> Schema:
    """The columns that a model reads: ids and dense numbers, and what gives them weights. No labels."""
    chosen = schema.select([feature.name for feature in schema.of("id", "dense")])
    return Schema(feature for feature in chosen if feature.kind not in ("label", "weight"))


def _cast(found: pa.Table, schema: Schema) -> pa.Table:
    """The columns that are needed, in the types of training: pandas knows no int8 with nulls, JSON no float32."""
    made = {}
    for feature in schema:
        if feature.cross is not None or feature.name not in found.column_names:
            continue
        column = found.column(feature.name)
        try:
            made[feature.name] = column if column.type == feature.type else column.cast(feature.type)
        except pa.ArrowException as error:
            raise ValueError(
                f"column {feature.name!r} is {column.type}, but was {feature.type} in training, and cannot be cast to "
                f"it: {error}"
            ) from None
    return pa.table(made)
