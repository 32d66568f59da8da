"""What holds a card on which a batch found no memory, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding import Table
from hybridrec.embedding.owner import groups_of
from hybridrec.train.bf16 import computes_in_bf16
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
    helps = _helps([store.table for store in there], layers_in_float32=not learner.bf16 and computes_in_bf16(device))
    total, rest = torch.cuda.mem_get_info(device)[1], torch.cuda.memory_reserved(device) - held
    return (
        f"{device} has no memory left for a batch. Of its {total:,} bytes, rows of tables have {rows:,}, their "
        f"optimizer state {state:,}, and {max(0, rest):,} are for batches, vectors with their gradients, layers and "
        f"CUDA graphs. What helps: {'; '.join(helps)}. torch says: {error}"
    )


def _helps(tables: Sequence[Table], layers_in_float32: bool) -> Iterator[str]:
    """What can be done, less what is done already; `layers_in_float32` says that layers could compute in half of it."""
    yield "smaller batches"
    if fixed := _largest((table, _hot(table)) for table in tables if table.rows is not None):
        named = ", ".join(f"{table.name} has {hot:,} rows there" for table, hot in fixed)
        yield f"a smaller cache= for the largest tables ({named})"
    for table, most in _largest((table, table.capacity) for table in tables if table.capacity is not None):
        yield f"a smaller capacity= for {table.name}, which may have {most:,} rows"
    if any(table.dtype == torch.float32 for table in tables):
        yield "rows of half the size with dtype=torch.bfloat16"
    if layers_in_float32:
        yield "TrainOptions(bf16=True), on the command line train.bf16=true, which halves what layers keep"


def _largest(rows: Iterable[tuple[Table, int]]) -> list[tuple[Table, int]]:
    return sorted(rows, key=lambda each: -each[1] * each[0].dim)[:NAMED]


def _hot(table: Table) -> int:
    return table.fixed_rows if table.cache is None else table.cached(table.fixed_rows)


def _on(device: torch.device, rows: Any) -> bool:
    return isinstance(rows, Tensor) and rows.device == device


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Tables that share a cache share its memory."""
    return sum({each.data_ptr(): each.nbytes for each in tensors}.values())
