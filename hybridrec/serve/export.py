"""Export: a trained model as a folder of plain files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.serve import manifest, table_file, table_json
from hybridrec.serve.dense_part import Outcome, trace
from hybridrec.serve.manifest import CollectionEntry, Manifest, TableEntry
from hybridrec.serve.stand_in import Collections, collections_of


def export(
    model: nn.Module,
    out: str | os.PathLike[str],
    *,
    schema: Schema | None = None,
    scores: Callable[[Tensor], Tensor] = torch.sigmoid,
    bf16: bool = False,
) -> Path:
    """Write a model to a new folder that `load` serves from: dense part, tables, schema, manifest.

    `schema` is that of the data, by default the model's own. `scores` makes predictions of the model's outputs, and
    becomes part of the exported program: for a regression give `lambda outputs: outputs`. With `bf16` the layers
    compute in bfloat16, as a model that was trained so does. The model itself is left as it is.

    >>> import tempfile, hybridrec as hr
    >>> from hybridrec.models import DeepFM
    >>> ds = hr.data.table({"user": [1, 2], "age": [20.0, 30.0], "click": [0, 1]}, label="click", batch_size=2)
    >>> folder = export(DeepFM(ds.schema, dim=4), tempfile.mkdtemp())
    >>> sorted(path.name for path in folder.iterdir())
    ['dense.pt2', 'manifest.json', 'schema.json', 'tables']
    """
    target = _new_folder(Path(out))
    chosen = getattr(model, "schema", None) if schema is None else schema
    if not isinstance(chosen, Schema):
        raise ValueError(f"{type(model).__name__} has no schema; pass that of the training data as schema=")
    beside = target.with_name(f".{target.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
    except OSError as error:
        raise OSError(
            f"{target} cannot be made: {error.strerror or error}; give a folder that you may write to"
        ) from error
    try:
        _write(beside, model, chosen, Outcome(scores, bf16))
        if target.exists():
            target.rmdir()  # empty, as checked
        os.replace(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _new_folder(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists and is not an empty folder; give another, or remove it")
    return path


def _write(folder: Path, model: nn.Module, schema: Schema, outcome: Outcome) -> None:
    collections = collections_of(model)
    program = trace(model, collections, dense_columns(schema), outcome)
    torch.export.save(program, folder / "dense.pt2")
    schema.save(folder / "schema.json")
    entries = _tables(folder, collections)
    names = ["dense.pt2", "schema.json", *(table.file for entry in entries for table in entry.tables)]
    from hybridrec import __version__

    versions = {"hybridrec": __version__, "torch": torch.__version__}
    labels = tuple(getattr(model, "labels", None) or [feature.name for feature in schema.of("label")])
    Manifest(type(model).__name__, labels, entries, versions, manifest.describe(folder, names)).write(folder)


def _tables(folder: Path, collections: Collections) -> tuple[CollectionEntry, ...]:
    entries = []
    for path, collection in collections.items():
        tables = []
        for name, table in collection.tables.items():
            file = f"tables/{quote(path, safe='')}/{quote(name, safe='')}.arrow"
            rows = table_file.write(folder / file, collection[name])
            tables.append(TableEntry(table_json.to_json(table), file, rows))
        entries.append(CollectionEntry(path, collection.seed, tuple(tables)))
    return tuple(entries)


def dense_columns(schema: Schema) -> tuple[str, ...]:
    """The columns of `batch.dense`: a fixed-size list has one for each place.

    >>> import pyarrow as pa
    >>> dense_columns(Schema.infer(pa.schema({"age": pa.float32(), "box": pa.list_(pa.float32(), 2)})))
    ('age', 'box[0]', 'box[1]')
    """
    made: list[str] = []
    for feature in schema.of("dense"):
        made += [feature.name] if feature.size is None else [f"{feature.name}[{i}]" for i in range(feature.size)]
    return tuple(made)
