"""Jobs that try the pool itself."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import torch

from hybridrec.parallel.ranks import ranks


def here(word: str) -> dict[str, Any]:
    """Who this rank is, by what it knows and by what it hears from the others."""
    found = ranks()
    rank, world = (found.rank, found.world) if found else (0, 1)
    told = found.all_told(rank) if found else [rank]
    return {"rank": rank, "world": world, "told": told, "word": word, "threads": torch.get_num_threads()}


def doubled(values: torch.Tensor) -> dict[str, Any]:
    """Tensors of many types, there and back."""
    return {"twice": [values * 2, values.bfloat16()], "none": None, "empty": torch.empty(0, 3)}


def failing(rank: int, how: str) -> None:
    """One rank fails while the others wait for it."""
    found = ranks()
    assert found is not None
    if found.rank == rank:
        if how == "raise":
            raise KeyError("the item that is not there")
        if how == "warn":
            warnings.warn("a warning nobody asked for", stacklevel=1)
        if how == "die":
            os._exit(3)
        time.sleep(600)
    found.barrier()


def timed(size: int, times: int) -> dict[str, Any]:
    """Seconds that each all-to-all of so many floats takes, and what the last one brought."""
    found = ranks()
    assert found is not None
    given = torch.full((size * found.world,), float(found.rank))
    took = []
    for _ in range(times):
        found.barrier()
        began = time.monotonic()
        got = torch.empty_like(given)
        torch.distributed.all_to_all_single(got, given)
        took.append(time.monotonic() - began)
    return {"seconds": took, "got": got.view(found.world, size)[:, 0]}
