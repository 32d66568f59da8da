"""The types in which vectors travel, in NumPy: bfloat16 goes as its 16 bits."""

from __future__ import annotations

import numpy as np

WIRE = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


def on_wire(vectors: np.ndarray, wire: str) -> np.ndarray:
    """float32 numbers as they travel, rounded to nearest, ties to even, as torch rounds them.

    >>> on_wire(np.array([1.0, 3.1415927], np.float32), "bfloat16")
    array([16256, 16457], dtype=uint16)
    """
    if wire == "float32":
        return vectors
    if wire == "float16":
        with np.errstate(over="ignore"):  # to infinity, which whoever applies it passes over
            return vectors.astype(np.float16)
    bits = vectors.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(vectors), np.uint16(0x7FC0), rounded)


def received(vectors: np.ndarray, wire: str) -> np.ndarray:
    """Numbers that have travelled, as float32.

    >>> received(np.array([16256], np.uint16), "bfloat16")
    array([1.], dtype=float32)
    """
    if wire == "bfloat16":
        return (vectors.astype(np.uint32) << 16).view(np.float32)
    return vectors.astype(np.float32, copy=False)
