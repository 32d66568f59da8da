"""fuse: the embedding modules of an existing model become tables of one group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from hybridrec.embedding import devices, fusible
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.fused_modules import FusedEmbedding, FusedEmbeddingBag
from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.initial import Constant
from hybridrec.embedding.parameters import whole
from hybridrec.embedding.table import Table

Model = TypeVar("Model", bound=nn.Module)
ALONE = "embedding"  # the name of the table where the model itself is the embedding
ALIGNED = 16  # bytes that kernels read at a time begin at multiples of it


def fuse(model: Model, *, skip: Iterable[str] = (), seed: int = 0) -> Model:
    """Make every nn.Embedding and nn.EmbeddingBag inside the model a table, in place, and return the model.

    Weights, outputs, calls and the keys of `state_dict` stay. One row optimizer then updates all tables in one pass:
    their rows are no longer among `model.parameters()`, so make optimizers after this. A module's `weight` becomes a
    view of the rows that takes no gradient. Rows stay where they are, on the CPU or a GPU, and in their type, wherever
    the rest of the model moves. `skip` leaves out modules by path; `seed` keys the rounding of rows in half precision.

    >>> import hybridrec
    >>> model = nn.ModuleDict({"user": nn.Embedding(100, 8), "tags": nn.EmbeddingBag(50, 4), "top": nn.Linear(12, 1)})
    >>> rows = hybridrec.optim.Adagrad(fuse(model), lr=0.05)
    >>> rows.tables, [name for name, _ in model.named_parameters()]
    (('user', 'tags'), ['top.weight', 'top.bias'])
    >>> both = torch.cat([model["user"](torch.tensor([1, 2])), model["tags"](torch.tensor([[3, 4], [5, 5]]))], 1)
    >>> model["top"](both).sum().backward()
    >>> rows.step()
    """
    seed = whole("fuse", "seed", seed, least=0, most=2**64 - 1)
    chosen = fusible.choose(model, skip)
    tables: dict[int, str] = {}  # by weight: modules that share one share a table
    stores: dict[torch.device, dict[str, Any]] = {}
    for path, weight in ((found.path or ALONE, found.module.weight) for found in chosen):
        if id(weight) not in tables:
            tables[id(weight)] = path
            stores.setdefault(weight.device, {})[path] = _store(path, weight, seed)
    groups = {device: _group(device, here) for device, here in stores.items()}
    for found in chosen:
        kind, weight = FusedEmbedding if found.base is nn.Embedding else FusedEmbeddingBag, found.module.weight
        kind.adopt(found.module, found.path or ALONE, groups[weight.device], tables[id(weight)])
    return model


@torch.no_grad()
def _store(name: str, weight: torch.Tensor, seed: int) -> Any:
    """A table that holds the weight."""
    rows, dim = weight.shape
    table = Table(name, dim, rows=rows, init=Constant(), dtype=weight.dtype, trainable=weight.requires_grad)
    if devices.on_host(weight.device):
        store = DenseStore(table, seed)
        store.weight.copy_(weight)
        return store
    from hybridrec.embedding.gpu.store import DeviceStore  # Triton comes with it

    return DeviceStore(table, seed, weight.device, rows=_rows_of(weight))


def _rows_of(weight: torch.Tensor) -> torch.Tensor:
    """A weight on a GPU as kernels read rows: where it lies, so that no table is there twice, if they can."""
    rows = weight.detach()
    readable = rows.is_contiguous() and rows.data_ptr() % ALIGNED == 0 and not rows.is_inference()
    return rows if readable else rows.clone(memory_format=torch.contiguous_format)


def _group(device: torch.device, stores: dict[str, Any]) -> Any:
    """The tables of one device."""
    trainable = {name for name, store in stores.items() if store.table.trainable}
    if devices.on_host(device):
        return TableGroup(stores, trainable)
    from hybridrec.embedding.gpu.group import DeviceGroup

    return DeviceGroup(stores, trainable)
