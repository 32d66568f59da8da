"""A table that is split by columns, and gradients that come as a test says: on this rank, or all of them alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import hybridrec as hr
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.types import IdBlock
from tests.parallel.jobs.training import held, rank_here

ROWS, COLUMNS = 8, (3, 2, 1)


def train(
    optimizer: str,
    options: dict[str, Any],
    ids: Tensor,
    grads: Tensor,
    combiner: str = "sum",
    on_device: bool = False,
    wire: str = "float32",
) -> dict[str, Any]:
    """Steps [steps, world, batch, hotness] of ids, each bag with the gradient [steps, world, batch, dim] given."""
    world = ids.shape[1]
    widths = *COLUMNS[: world - 1], sum(COLUMNS[world - 1 :])
    plan = Plan(world, (Placement("t", "column", tuple(range(world)), widths),))
    model = hr.shard(collection(combiner, on_device), plan=plan, wire=Wire(gradient=wire))
    return run(model, optimizer, options, ids, grads, [rank_here()])


def train_alone(
    optimizer: str, options: dict[str, Any], ids: Tensor, grads: Tensor, combiner: str = "sum"
) -> dict[str, Any]:
    """The same in one process, on the batches of all ranks."""
    return run(collection(combiner), optimizer, options, ids, grads, list(range(ids.shape[1])))


def collection(combiner: str, on_device: bool = False) -> hr.EmbeddingCollection:
    """The table, alone in its collection."""
    table = hr.Table("t", sum(COLUMNS), rows=ROWS, init=hr.embedding.Uniform(1.0), combiner=combiner)
    if not on_device:
        return hr.EmbeddingCollection([table], seed=1)
    from tests.parallel.gpu.collection import DeviceCollection  # Triton comes with it

    return DeviceCollection([table], seed=1)


def run(
    model: Any, optimizer: str, options: dict[str, Any], ids: Tensor, grads: Tensor, part: list[int]
) -> dict[str, Any]:
    """What the table holds after these steps, how many rows were left out, and what was sent."""
    rows = getattr(hr.optim, optimizer)(model, **options)
    owner = getattr(model, "module", model)
    store, device = owner["t"], owner.device
    for every_id, every_grad in zip(ids[:, part].flatten(1, 2), grads[:, part].flatten(1, 2), strict=True):
        flat = model(IdBlock.from_ragged({"t": every_id}).to(device)).flat
        flat.backward(every_grad.to(device) / len(part))  # a rank's gradients count by its share of the rows
        rows.step()
    traffic = model.exchange.traffic.calls if hasattr(model, "exchange") else {}
    return {"final": {"t": held(store)}, "nan_rows": store.counters()["nan_rows"], "sent": dict(traffic)}
