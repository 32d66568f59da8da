"""Tables that are split by columns: what needs a whole row, of which no rank has one, is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.parallel.schemes import Piece

Pieces = Mapping[str, Sequence[Piece]]
REMEDY = "pin the table to another scheme (row, table, replicated)"


def refuse_rule(pieces: Pieces, name: str, rule: RowRule, owner: object) -> None:
    """Raise if an optimizer keeps something for whole rows of a table that is split by columns."""
    if len(pieces[name]) > 1 and any(column.per_row for column in rule.state):
        raise ValueError(
            f"table {name!r} is split by columns, and {type(owner).__name__} keeps one number for a whole row; "
            f"{REMEDY}, or give it an optimizer such as Adagrad"
        )


def refuse_clipping(pieces: Pieces, steps: Mapping[str, RowStep]) -> None:
    """Raise if a step clips whole rows of a table that is split by columns."""
    for name, step in steps.items():
        if step.clip_row_norm < math.inf and len(pieces[name]) > 1:
            raise ValueError(
                f"table {name!r} is split by columns, and clip_row_norm needs the norm of a whole row; {REMEDY}, or "
                "leave clip_row_norm out"
            )
