"""Row filters: the two forms a user may write, the columns they need, and their value for a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq


def as_expression(where: Any) -> pc.Expression:
    """A pyarrow Expression as it is, or the tuple form: a list of conditions that must all hold.

    A list of such lists means that one of them must hold. Operators: = == != < > <= >= in, not in.

    >>> print(as_expression([("day", ">=", 3), ("city", "in", ["Bern"])]))
    ((day >= 3) and is_in(city, {value_set=string:[...
    """
    if isinstance(where, pc.Expression):
        return where
    if isinstance(where, list | tuple) and where:
        conditions = [where] if isinstance(where[0], str) else list(where)
        try:
            expression = pq.filters_to_expression(conditions)
        except (ValueError, TypeError) as error:
            raise ValueError(f"where={where!r}: {error}; write [('day', '>=', 3), ...]") from error
        if expression is not None:
            return expression
    raise TypeError(f"where must be a pyarrow.compute Expression or [('day', '>=', 3), ...], got {where!r}")


def filter_columns(where: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns that an expression reads; names it does not find, or types that do not fit, are errors.

    Arrow does not list an expression's fields, so it is bound to a growing schema until nothing is missing.

    >>> schema = pa.schema({"b": pa.string(), "a": pa.int8(), "c": pa.int8()})
    >>> filter_columns((pc.field("a") > 1) & (pc.field("b") == "x"), schema)
    ['a', 'b']
    """
    needed: list[str] = []
    while True:
        known = pa.schema([schema.field(name) for name in needed])
        try:
            kind = ds.Scanner.from_batches([], schema=known, columns={"keep": where}).projected_schema.field(0).type
        except pa.ArrowInvalid as error:
            if not str(error).startswith("No match for FieldRef"):
                raise ValueError(f"where={where}: {error}") from error
            needed.append(_missing(where, str(error), schema))
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            types = ", ".join(f"{field.name}: {field.type}" for field in known)
            raise ValueError(f"where={where} does not fit the column types ({types}): {error}") from error
        else:
            if not pa.types.is_boolean(kind):
                raise ValueError(f"where={where} gives {kind}; it must give a boolean, such as pc.field('day') >= 3")
            return needed


def _missing(where: pc.Expression, message: str, schema: pa.Schema) -> str:
    """The schema's name for the field that Arrow did not find."""
    for name in schema.names:
        if message.startswith(f"No match for FieldRef.Name({name}) in"):
            return name
    asked = message.removeprefix("No match for FieldRef.").split(" in ")[0].removeprefix("Name(").removesuffix(")")
    hint = "; write a struct's field as pc.field('user.age')" if message.startswith("No match for FieldRef.N") else ""
    raise ValueError(f"where={where}: unknown column {asked!r}; the columns are {', '.join(schema.names)}{hint}")


def evaluate(where: pc.Expression, batch: pa.RecordBatch) -> np.ndarray:
    """The expression's value for each row, [rows] bool; null counts as False."""
    scanner = ds.Scanner.from_batches(
        [batch],
        schema=batch.schema,
        columns={"keep": where},
        batch_size=max(batch.num_rows, 1),
        use_threads=False,
    )
    keep = scanner.to_table().column(0).combine_chunks()
    return pc.fill_null(keep, False).to_numpy(zero_copy_only=False)
