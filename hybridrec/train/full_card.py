"""What holds a card on which a step found no memory, and what helps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding import Table
from hybridrec.embedding.owner import groups_of
from hybridrec.train.step import Learner

NAMED = 3  # tables, the largest


def full_card(learner: Learner, error: torch.OutOfMemoryError) -> str:
    """The error, and before it who has the memory of the learner's card: rows, their state, and all else."""
    device = learner.device
    if device is None or device.type != "cuda":
        return f"{error}"
    stores = [store for _, group in groups_of(learner.model) for store in group.stores.values()]
    there: list[Any] = [store for store in stores if _on(device, getattr(store, "there", None))]
    rows = _bytes(store.there for store in there)
    state = _bytes(values for store in there for values in store.states.values())
    of_torch = [store for store in there if not store.table.dynamic]  # those that grow have memory of the driver
    held = _bytes(values for store in of_torch for values in (store.there, *store.states.values()))
    total, rest = torch.cuda.mem_get_info(device)[1], torch.cuda.memory_reserved(device) - held
    return (
        f"{device} has no memory left for a step. Of its {total:,} bytes, rows of tables have {rows:,}, their "
        f"optimizer state {state:,}, and {max(0, rest):,} are for batches, vectors with their gradients, layers and "
        f"CUDA graphs. What helps: smaller batches; {_fewer(store.table for store in there)}rows of half the size with "
        f"dtype=torch.bfloat16; TrainOptions(bf16=True), which halves what layers keep. torch says: {error}"
    )


def _fewer(tables: Iterable[Table]) -> str:
    """Which tables could have fewer rows there."""
    largest = sorted(tables, key=lambda table: -_hot(table) * table.dim)[:NAMED]
    named = ", ".join(f"{table.name} has {_hot(table):,} rows there" for table in largest)
    return f"a smaller cache= for the largest tables ({named}); " if named else ""


def _hot(table: Table) -> int:
    rows = table.capacity or table.fixed_rows
    return rows if table.cache is None else table.cached(rows)


def _on(device: torch.device, rows: Any) -> bool:
    return isinstance(rows, Tensor) and rows.device == device


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Tables that share a cache share its memory."""
    return sum({each.data_ptr(): each.nbytes for each in tensors}.values())
