"""Chunks of Arrow columns into packed batches: planned once from the schema, copied by native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import torch

from hybridrec import _native
from hybridrec.data.arrow_types import is_list, is_text, without_dictionary
from hybridrec.data.extra import carried, extra_type, without_nulls
from hybridrec.data.hashing import SEED, hash_array
from hybridrec.data.page_locked import page_locked
from hybridrec.data.restore import Restore
from hybridrec.data.schema import NULL_ID, Feature, Schema
from hybridrec.remedy import SCHEMA_FILE, remedied
from hybridrec.types import Batch, IdBlock, Ragged

Step = Callable[[pa.RecordBatch], pa.RecordBatch]
_MATRIX = {"dense": 0, "label": 1, "weight": 2}


class BadValue(ValueError):
    """A value in the data that the schema does not allow."""


@dataclass(frozen=True)
class Chunk:
    """One decoded chunk: native columns for the packer, Arrow columns for `extra`."""

    native: Any
    extra: dict[str, pa.Array]
    rows: int
    bytes: int


@dataclass(frozen=True)
class Rows:
    """The rows of a batch among its chunks: runs (chunk, start, stop), or an index for each row."""

    count: int
    runs: list[list[int]] | None = None
    chunk_of: np.ndarray | None = None  # int32 [count]
    row_of: np.ndarray | None = None  # int32 [count]


class Decoder:
    """Turns record batches into `Chunk`s and rows of them into `Batch`es, as a schema says.

    `steps` change a record batch before the schema applies (join, restore); `columns` is what they and the
    schema need from the files. A decoder is immutable and serves many threads; `cache()` is for one row group
    at a time. With `device`, batches lie in memory that this device copies from by itself.
    """

    def __init__(self, schema: Schema, steps: Sequence[Step] = (), device: torch.device | None = None) -> None:
        self.schema, self.device = schema, device
        self.steps = tuple(steps)
        self._ids = schema.of("id")
        self._dense = schema.of("dense", "label", "weight")
        weighing = {feature.weights for feature in self._ids if feature.weights}
        self._extra = [feature for feature in schema.of("extra") if feature.name not in weighing]
        self._extra_defaults = {feature.name: _extra_default(feature) for feature in self._extra}
        packed = [*self._ids, *self._dense, *(schema[name] for name in sorted(weighing))]
        self._packed = {feature.name: _converter(feature, schema) for feature in packed}
        self._untouched = bool(packed) and not any(feature.transforms or feature.cross for feature in packed)
        self._arena = _native.Arena.create(None if device is None else partial(page_locked, device))
        self._packer = _native.Packer(self._id_fields(), self._dense_fields())
        self._dense_names = tuple(_column_names(schema.of("dense")))
        self._label_names = tuple(_column_names(schema.of("label")))
        self._width = {kind: sum(f.width for f in schema.of(kind)) for kind in _MATRIX}
        self._ragged = [feature.name for feature in self._ids if feature.ragged]
        self._hotness = tuple(None if feature.ragged else feature.width for feature in self._ids)

    def cache(self) -> Any:
        """What one row group's chunks share: the hashes of its dictionaries."""
        return _native.HashCache()

    def chunk(self, batch: pa.RecordBatch, cache: Any, absent: frozenset[str] = frozenset()) -> Chunk:
        """Decode one record batch, columns that its file lacks from their defaults."""
        restores = [step for step in self.steps if isinstance(step, Restore)]
        for step in restores:
            batch = step(batch)
        for name in sorted(absent):  # before joins, which may look a default up
            column = pa.repeat(self.schema[name].default_row(), batch.num_rows)
            place = batch.schema.get_field_index(name)
            batch = batch.append_column(name, column) if place < 0 else batch.set_column(place, name, column)
        for step in self.steps[len(restores) :]:
            batch = step(batch)
        flat = self._flat(batch)
        extra = {feature.name: _extra_array(feature, batch.column(feature.name)) for feature in self._extra}
        size = flat.nbytes + sum(column.nbytes for column in extra.values())
        native = _native.Chunk.create(*flat.__arrow_c_array__(), cache, SEED)
        return Chunk(native, extra, batch.num_rows, size)

    def _flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that the packer reads, in its order; untouched where nothing has to be done to them."""
        names = list(self._packed)
        if self._untouched:
            chosen = batch.select(names)
            if all(_is_plain(kind) or _is_plain_list(kind) for kind in chosen.schema.types):
                return chosen
        columns = [convert(batch) for convert in self._packed.values()]
        return pa.RecordBatch.from_arrays(columns, names) if names else batch.select([])

    def pack(self, chunks: Sequence[Chunk], rows: Rows, where: Callable[[int, int], str]) -> Batch:
        """One batch of rows from these chunks; `where(chunk, row)` names a row's place, for errors."""
        native = [chunk.native for chunk in chunks]
        if rows.runs is not None:
            made = self._packer.pack_runs(native, rows.runs, self._arena)
        else:
            made = self._packer.pack_rows(native, rows.chunk_of, rows.row_of, self._arena)
        if len(made) != 3:
            raise self._bad_value(made, where)
        block, at, starts = made
        return self._batch(block, at, starts, rows.count, self._extra_columns(chunks, rows, where))

    def empty(self) -> Batch:
        """A batch of no rows, with every feature in its place."""
        return self.pack([], Rows(0, runs=[]), lambda chunk, row: "")

    # -- the packed part -------------------------------------------------------------------------------------

    def _batch(self, block: np.ndarray, at: tuple[int, ...], starts: list[int], n: int, extra: dict[str, Any]) -> Batch:
        arena = torch.from_numpy(block)
        offsets, values, weights, *matrices = at

        def view(start: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
            size = int(np.prod(shape)) * dtype.itemsize
            return arena[start : start + size].view(dtype).view(shape)

        ids = IdBlock(
            names=tuple(feature.name for feature in self._ids),
            values=view(values, torch.int64, starts[-1]),
            starts=tuple(starts),
            hotness=self._hotness,
            offsets=view(offsets, torch.int64, len(self._ragged), n + 1),
            weights=view(weights, torch.float32, starts[-1]) if any(f.weights for f in self._ids) else None,
            batch_size=n,
        )
        dense, label, weight = (
            view(start, torch.float32, n, self._width[kind]) for kind, start in zip(_MATRIX, matrices, strict=True)
        )
        return Batch(
            ids=ids,
            dense=dense,
            label=None if not self._label_names else label if len(self._label_names) > 1 else label.view(n),
            weight=weight.view(n) if self._width["weight"] else None,
            extra=extra,
            dense_names=self._dense_names,
            label_names=self._label_names,
            arena=arena,
        )

    def _id_fields(self) -> list[Any]:
        place = {name: i for i, name in enumerate(self._packed)}
        fields = []
        for feature in self._ids:
            row, element = _id_default(feature)
            policy = {"error": "Error", "empty": "Empty"}.get(feature.null, "Default")
            element_policy = policy if element is not None or policy != "Default" else "Error"
            fields.append(
                _native.IdField(
                    column=place[feature.name],
                    hotness=-1 if feature.ragged else feature.width,
                    null=getattr(_native.Null, policy),
                    element_null=getattr(_native.Null, element_policy),
                    row_default=row,
                    element_default=element or 0,
                    weights=place[feature.weights] if feature.weights else -1,
                )
            )
        return fields

    def _dense_fields(self) -> list[Any]:
        place = {name: i for i, name in enumerate(self._packed)}
        fields, at = [], dict.fromkeys(_MATRIX, 0)
        for feature in self._dense:
            policy = _native.Null.Error if feature.null == "error" else _native.Null.Default
            default = _dense_default(feature)
            matrix, start = _MATRIX[feature.kind], at[feature.kind]
            fields.append(_native.DenseField(place[feature.name], matrix, start, feature.width, policy, default))
            at[feature.kind] += feature.width
        return fields

    def _bad_value(self, fault: tuple[Any, ...], where: Callable[[int, int], str]) -> BadValue:
        what, column, chunk, row, found, wanted = fault
        name = list(self._packed)[column]
        place = f"column {name!r}, {where(chunk, row)}"
        if what == "weight count":
            return BadValue(f"{place}: {found} weights for {wanted} ids; a weight column has one value per id")
        if what == "width":
            return BadValue(
                f"{place}: a list of {found} values, but size={wanted} was promised; mend the data or the schema"
            )
        feature = self.schema[name]
        kind = "a null" if what == "null row" else "a null inside a list"
        if feature.null == "default":
            return BadValue(
                f"{place}: {kind}; the default {feature.default} stands for whole rows, give a single value"
            )
        others = ', or null="empty" or "id"' if feature.kind == "id" else ""
        return remedied(
            BadValue,
            f'{place}: {kind}, and the policy of this column is null="error"',
            call=f'choose another: schema.edit({name!r}, null="default", default=...){others}',
            setting=f'fill it in the file, or choose another, null="default" and a default{others}, {SCHEMA_FILE}',
        )

    # -- the rest --------------------------------------------------------------------------------------------

    def _extra_columns(self, chunks: Sequence[Chunk], rows: Rows, where: Callable[[int, int], str]) -> dict[str, Any]:
        made: dict[str, Ragged | torch.Tensor] = {}
        for feature in self._extra:
            columns = [chunk.extra[feature.name] for chunk in chunks]
            column = _gathered(columns, rows) if columns else pa.array([], extra_type(feature.output))
            try:
                made[feature.name] = _to_torch(without_nulls(column, feature.null, self._extra_defaults[feature.name]))
            except ValueError as error:
                place = where(*_first(rows)) if chunks else "an empty batch"
                raise BadValue(f"column {feature.name!r}, in the batch that begins at {place}: {error}") from None
        return made


def _gathered(columns: list[pa.Array], rows: Rows) -> pa.Array:
    """The rows of a batch out of the columns of its chunks."""
    if rows.runs is not None:
        parts = [columns[chunk].slice(start, stop - start) for chunk, start, stop in rows.runs]
        return pa.concat_arrays(parts or [columns[0].slice(0, 0)])
    assert rows.chunk_of is not None
    assert rows.row_of is not None
    order = np.argsort(rows.chunk_of, kind="stable")  # chunk by chunk, then back into the rows' order
    ends = np.searchsorted(rows.chunk_of[order], np.arange(len(columns) + 1))
    parts = [
        column.take(pa.array(rows.row_of[order[start:stop]]))
        for column, start, stop in zip(columns, ends[:-1], ends[1:], strict=True)
    ]
    place = np.empty(rows.count, np.int64)
    place[order] = np.arange(rows.count)
    return pa.concat_arrays(parts).take(pa.array(place))


def _first(rows: Rows) -> tuple[int, int]:
    """Chunk and row of the first row of a batch."""
    if rows.runs is not None:
        return (rows.runs[0][0], rows.runs[0][1]) if rows.runs else (0, 0)
    assert rows.chunk_of is not None
    assert rows.row_of is not None
    return (int(rows.chunk_of[0]), int(rows.row_of[0])) if rows.count else (0, 0)


def _converter(feature: Feature, schema: Schema) -> Callable[[pa.RecordBatch], pa.Array]:
    """The function that gets a feature's column, transformed, in a type that the packer reads."""
    cross = feature.cross
    if cross is not None:
        left, right = (_converter(schema[side], schema) for side in (cross.left, cross.right))
        return lambda batch: cross(left(batch), right(batch))
    name, transforms = feature.name, feature.transforms
    target = "float" if feature.kind != "id" else "int"

    def convert(batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(name)
        for transform in transforms:
            column = transform(column)
        return readable(column, target)

    return convert


def _is_plain(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)


def _is_plain_list(kind: pa.DataType) -> bool:
    return is_list(kind) and _is_plain(kind.value_type)


def readable(column: pa.Array, target: str) -> pa.Array:
    """The column itself where the packer reads its type, else the nearest type it reads."""
    kind = column.type
    element = kind.value_type if is_list(kind) else kind
    if pt.is_dictionary(element):
        text = element.value_type
        whole = column if element is kind else column.values
        if is_text(text) and not pt.is_fixed_size_binary(text) and whole.dictionary.null_count == 0:
            return column
        return readable(column.cast(_with_element(kind, text)), target)
    if pt.is_null(element):
        return column.cast(_with_element(kind, pa.int64() if target == "int" else pa.float32()))
    if pt.is_decimal(element):
        return column.cast(_with_element(kind, pa.int64() if target == "int" else pa.float64()))
    if pt.is_temporal(element):
        return column.cast(_with_element(kind, pa.int32() if element.bit_width == 32 else pa.int64()))
    if pt.is_string_view(element) or pt.is_binary_view(element) or pt.is_fixed_size_binary(element):
        return column.cast(_with_element(kind, pa.large_binary()))
    return column


def _with_element(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    if pt.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    if pt.is_large_list(kind):
        return pa.large_list(element)
    return pa.list_(element) if pt.is_list(kind) else element


def _default_values(feature: Feature) -> list[Any]:
    """The default after the transforms and the hash: the ids or numbers of a row."""
    column = pa.array([feature.default_row().as_py()], feature.type)
    for transform in feature.transforms:
        column = transform(column)
    column = readable(column, "int" if feature.kind == "id" else "float")
    column = column.flatten() if is_list(column.type) else column
    if feature.kind == "id" and is_text(without_dictionary(column.type)):
        column = hash_array(column, SEED)
    values = pc.cast(column, pa.int64() if feature.kind == "id" else pa.float32(), safe=False).to_pylist()
    if None in values:
        raise ValueError(f"feature {feature.name!r}: its transforms make a null of default={feature.default!r}")
    if not feature.ragged and len(values) != feature.width:
        raise ValueError(f"feature {feature.name!r}: the default {feature.default} needs {feature.width} values")
    return values


def _id_default(feature: Feature) -> tuple[list[int], int | None]:
    """What a null row and a null element become; None where a null element has no stand-in."""
    if feature.null == "id":
        return [NULL_ID] * (1 if feature.ragged else feature.width), NULL_ID
    if feature.null != "default":
        return [], 0
    values = _default_values(feature)
    return values, None if isinstance(feature.default, list | tuple) else values[0]


def _dense_default(feature: Feature) -> list[float]:
    if feature.default is None:  # 0.0 after the transforms: a missing standardised value is an average one
        return [0.0] * feature.width
    return _default_values(feature)


def _column_names(features: list[Feature]) -> list[str]:
    names = []
    for feature in features:
        names += [feature.name] if feature.size is None else [f"{feature.name}[{i}]" for i in range(feature.size)]
    return names


def _extra_array(feature: Feature, column: pa.Array) -> pa.Array:
    for transform in feature.transforms:
        column = transform(column)
    return carried(column, extra_type(feature.output))


def _extra_default(feature: Feature) -> list[pa.Scalar]:
    """What nulls become, level by level; inside rows only where the default is a single value."""
    if feature.default is None:
        return []
    levels = [_extra_array(feature, pa.array([feature.default_row().as_py()], feature.type))[0]]
    while not isinstance(feature.default, list | tuple) and is_list(levels[-1].type):
        levels.append(levels[-1].values[0])
    return levels


def _to_torch(column: pa.Array) -> Ragged | torch.Tensor:
    kind = column.type
    if (
        is_list(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
    ):
        return Ragged.from_arrow(column)
    array = column.to_numpy(zero_copy_only=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
