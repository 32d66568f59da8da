"""From somebody's rows to the batches that a model was trained on, without the labels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from hybridrec.data.arrow_types import element_type, is_text
from hybridrec.data.dataset import Dataset
from hybridrec.data.formats import as_table
from hybridrec.data.open import table
from hybridrec.data.schema import Feature, Schema
from hybridrec.remedy import SCHEMA_FILE, remedied


def inputs_of(schema: Schema, there: Collection[str] = ()) -> Schema:
    """The columns that a model reads: ids and dense numbers, what gives them weights, and of the others those `there`.

    Labels and sample weights are not among them.

    >>> columns = pa.schema({"user": pa.int64(), "when": pa.date32(), "click": pa.int8()})
    >>> [feature.name for feature in inputs_of(Schema.infer(columns, label="click"))]
    ['user']
    """
    named = [f.name for f in schema if f.kind in ("id", "dense") or (f.kind == "extra" and f.name in there)]
    return Schema(feature for feature in schema.select(named) if feature.kind not in ("label", "weight"))


def check_inputs(inputs: Schema, there: Collection[str]) -> None:
    """Refuse data that lacks a column which no default can stand in for."""
    missing = [f for f in inputs if f.cross is None and f.name not in there and f.default is None]
    if missing:
        first, have = missing[0], ", ".join(there) or "none"
        raise remedied(
            ValueError,
            f"the data has no column {', '.join(repr(feature.name) for feature in missing)}, which the model was "
            f"trained with ({first.name}: {first.kind}, {first.type}); it has {have}",
            call="add it, or train with a default= for it in the schema",
            setting=f"add it, or train with a default for it {SCHEMA_FILE}",
        )


def check_alike(found: Schema, trained: Schema) -> None:
    """Refuse data whose features would be other ids or numbers than those of the same names that a model knows.

    Columns of text get other ids than columns of whole numbers; so do other transforms. Dense columns have one order.
    """
    for feature in trained:
        if feature.kind not in ("id", "dense") or feature.name not in found:
            continue
        ours, theirs = _makings(feature), _makings(found[feature.name])
        for what, value in ours.items():
            if value != theirs[what]:
                raise ValueError(
                    f"feature {feature.name!r}: {what} {theirs[what] or 'none'}, but {value or 'none'} in training; "
                    "open both with one schema: schema=dataset.schema"
                )
    dense, theirs = ([feature.name for feature in schema.of("dense")] for schema in (trained, found))
    if dense != theirs:
        raise ValueError(
            f"dense columns {', '.join(theirs) or 'none'}, but {', '.join(dense) or 'none'} in training; open "
            "both with one schema: schema=dataset.schema"
        )


def _makings(feature: Feature) -> dict[str, Any]:
    """What a feature's ids or numbers depend on, beside the values."""
    kind = "text" if is_text(element_type(feature.type)) else "numbers"
    return {"kind": feature.kind, "values": kind, "transforms": feature.transforms, "weights": feature.weights}


def frame_dataset(frame: Any, schema: Schema, batch_size: int = 8192) -> Dataset:
    """The rows of a frame (pandas, polars, pyarrow, dict) in order, read as `schema` says, but without labels.

    >>> schema = Schema.infer(pa.schema({"user": pa.int64(), "click": pa.int8()}), label="click")
    >>> [batch.ids["user"].to_list() for batch in frame_dataset({"user": [5, 6]}, schema)]
    [[[5], [6]]]
    """
    found = _flat(as_table(frame))
    inputs = inputs_of(schema, found.column_names)
    check_inputs(inputs, found.column_names)
    return table(_cast(found, inputs), batch_size=batch_size, schema=inputs)


def _flat(found: pa.Table) -> pa.Table:
    """The table with the fields of structs as columns with dotted names, as in files."""
    while any(pa.types.is_struct(kind) for kind in found.schema.types):
        found = found.flatten()
    return found


def _cast(found: pa.Table, inputs: Schema) -> pa.Table:
    """The columns that are needed, in the types of training: pandas knows no int8 with nulls, JSON no float32."""
    made = {}
    for feature in inputs:
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
