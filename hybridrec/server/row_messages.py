"""Rows in messages: arrays in a fixed order, the fields say which of them are there."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridrec.server.declaration import Rule
from hybridrec.server.protocol import Message, malformed
from hybridrec.server.rows import RowArrays, Rows

ROW_FIELDS = {"state": list, "touched": bool, "counts": bool}  # of a message that has rows


def packed(data: RowArrays) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The fields and buffers that carry these rows."""
    fields = {"state": list(data.state), "touched": data.touched is not None, "counts": data.counts is not None}
    given = [data.ids, data.rows, *data.state.values(), data.touched, data.counts]
    return fields, [np.ascontiguousarray(part) for part in given if part is not None]


def unpacked(message: Message, fields: dict[str, Any], rows: Rows, rule: Rule | None) -> RowArrays:
    """The rows of a message for this table, whose state is that of the rule, or a refusal."""
    widths = {column.name: (-1,) if column.per_row else (-1, rows.dim) for column in (rule.state if rule else ())}
    names = fields["state"]
    if strange := [name for name in names if name not in widths]:
        known = ", ".join(widths) or "none"
        raise malformed(f"table {rows.name!r} has no state {strange[0]!r}; it has {known}")
    message.only(2 + len(names) + fields["touched"] + fields["counts"])
    ids, values = message.array(0, "<i8", -1), message.array(1, rows.bits.str, -1, rows.dim)
    state = {name: message.array(2 + place, "<f4", *widths[name]) for place, name in enumerate(names)}
    at = 2 + len(names)
    touched = message.array(at, "<i8", -1) if fields["touched"] else None
    counts = message.array(at + fields["touched"], "<i8", -1) if fields["counts"] else None
    for part in (values, *state.values(), touched, counts):
        if part is not None and len(part) != len(ids):
            raise malformed(f"rows of {len(ids)} ids come with {len(part)} values")
    return RowArrays(ids, values, state, touched, counts)
