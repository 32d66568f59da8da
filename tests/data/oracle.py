"""What a dataset must give, worked out row by row in plain Python, and what it gives in the same form."""

from __future__ import annotations

import decimal
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import xxhash

from hybridrec.data.arrow_types import list_depth
from hybridrec.data.schema import NULL_ID, Feature, Schema
from hybridrec.types import Batch, Ragged


def rows_of(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    """Every row of the batches as a dict of plain values; ids always as a list."""
    return [row for batch in batches for row in batch_rows(batch)]


def batch_rows(batch: Batch) -> list[dict[str, Any]]:
    columns: dict[str, list[Any]] = {name: batch.ids[name].to_list() for name in batch.ids.names}
    columns |= {name: batch.dense[:, i].tolist() for i, name in enumerate(batch.dense_names)}
    label = batch.label if batch.label is None or batch.label.dim() == 2 else batch.label[:, None]
    columns |= {name: label[:, i].tolist() for i, name in enumerate(batch.label_names)}
    columns |= {} if batch.weight is None else {"(weight)": batch.weight.tolist()}
    columns |= {n: c.to_list() if isinstance(c, Ragged) else c.tolist() for n, c in batch.extra.items()}
    assert all(len(column) == len(batch) for column in columns.values())
    names = list(columns)
    return [
        dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ] if names else [{}] * len(batch)  # fmt: skip


def expected_rows(stored: list[dict[str, Any]], schema: Schema) -> list[dict[str, Any]]:
    """The rows that a dataset must make of `stored` (dicts of physical values, None for null)."""
    return [expected_row(row, schema) for row in stored]


def expected_row(row: dict[str, Any], schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for feature in schema:
        value = row[feature.name] if feature.cross is None else None
        if feature.kind == "id":
            made[feature.name] = expected_ids(feature, value)
        elif feature.kind in ("dense", "label"):
            made |= expected_numbers(feature, value)
        elif feature.kind == "weight":
            made["(weight)"] = as_float(value)
        elif feature.kind == "extra":
            made[feature.name] = expected_extra(feature, value)
    return made


def expected_ids(feature: Feature, value: Any) -> list[int]:
    width = 1 if feature.ragged else feature.width
    if value is None:
        stand_in = {"id": [NULL_ID] * width, "empty": []}
        default = feature.default if isinstance(feature.default, list) else [feature.default] * width
        return stand_in[feature.null] if feature.null in stand_in else [as_id(item) for item in default]
    items = value if isinstance(value, list) else [value]
    made = [as_id(item) if item is not None else _null_element(feature) for item in items]
    return [item for item in made if item is not None]


def _null_element(feature: Feature) -> int | None:
    if feature.null == "empty":
        return None
    return NULL_ID if feature.null == "id" else as_id(feature.default)


def as_id(value: Any) -> int:
    """An id: text by its XXH64, whole numbers as 64 bits with a sign."""
    if isinstance(value, str | bytes):
        value = xxhash.xxh64_intdigest(value if isinstance(value, bytes) else value.encode(), seed=0)
    (signed,) = struct.unpack("<q", struct.pack("<Q", int(value) % 2**64))
    return signed


def expected_numbers(feature: Feature, value: Any) -> dict[str, float]:
    stand_in = 0.0 if feature.default is None else feature.default
    stand_ins = stand_in if isinstance(stand_in, list) else [stand_in] * feature.width
    items = value if isinstance(value, list) else [value] * feature.width
    numbers = [as_float(other if item is None else item) for item, other in zip(items, stand_ins, strict=True)]
    names = [feature.name] if feature.size is None else [f"{feature.name}[{i}]" for i in range(feature.size)]
    return dict(zip(names, numbers, strict=True))


def as_float(value: Any) -> float:
    """A number as float32; whole numbers go there directly, not by way of a double."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(np.array([value], np.uint64 if value > 2**63 - 1 else np.int64).astype(np.float32)[0])
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def expected_extra(feature: Feature, value: Any) -> Any:
    return _carried(value, list_depth(feature.type), feature)


def _carried(value: Any, depth: int, feature: Feature) -> Any:
    """One level of a column that travels as it is: nulls replaced, decimals as floats."""
    if value is None:
        assert feature.null != "error"
        if feature.null == "default":
            made = feature.default
            for _ in range(depth):
                made = [made]
            return made
        return [] if depth else b"" if pa.types.is_binary(feature.type) else ""
    if depth == 0:
        return float(value) if isinstance(value, decimal.Decimal) else value
    kept = [item for item in value if item is not None or depth > 1 or feature.null != "empty"]
    return [_carried(item, depth - 1, feature) for item in kept]


def same(a: Any, b: Any) -> bool:
    """Equal, NaN included, at any depth."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (a != a and b != b)
    return type(a) is type(b) and a == b


def equal_batches(left: list[Batch], right: list[Batch]) -> bool:
    """Bit for bit, in the same order."""
    return len(left) == len(right) and all(a.equal(b) for a, b in zip(left, right, strict=True))


def users(batches: Iterable[Batch], name: str = "user") -> list[list[int]]:
    """The values of a scalar id feature, batch by batch."""
    return [batch.ids[name].values.tolist() for batch in batches]


def flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return [item for part in parts for item in part]


def shares_no_memory(a: Batch, b: Batch) -> bool:
    def ends(t: torch.Tensor) -> tuple[int, int]:
        return t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()

    (a0, a1), (b0, b1) = ends(a.ids.values), ends(b.ids.values)
    return a1 <= b0 or b1 <= a0
