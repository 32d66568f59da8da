"""The models of `tiers_gpu.py`: those of `embedding_gpu.py`, one with other state, and two that are larger.

`criteo1tb` is a DLRM with the layers of the MLPerf benchmark over the tables of Criteo 1 TB, 97 GiB of rows: with
Adagrad by element no card would have all of it, so its state is row-wise. `medium_fp32` has 206 GiB of rows.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_models import CRITEO_1TB, SHAPES, Shape, Tables

CACHED = 0.2  # of the rows of large tables are on the card
TIERED = {
    **SHAPES,
    "small_rowwise": replace(SHAPES["small"], rowwise=True),
    "criteo1tb": Shape(
        tuple(Tables(1, (1,), rows, 128) for rows in CRITEO_1TB),
        hidden=(1024, 1024, 512, 256),
        numbers=13,
        rowwise=True,
        bottom=(512, 256),
    ),
    "medium_fp32": replace(SHAPES["medium"], half=False),
}


def shape_of(model: str, most_rows: int | None = None) -> Shape:
    """A shape by name, its tables capped where a number is given."""
    return TIERED[model] if most_rows is None else TIERED[model].capped(most_rows)
