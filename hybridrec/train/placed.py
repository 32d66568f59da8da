"""Placed: a batch where the model wants it, and what is known of it from before."""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridrec.types import Batch


class Placed(NamedTuple):
    """A batch whose labels were checked, on the device of the model. `weight` is the sum of its rows' weights."""

    batch: Batch
    weight: float
    ready: Any = None  # the event after which it can be read, where another stream brings it
