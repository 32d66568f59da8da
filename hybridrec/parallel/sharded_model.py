"""ShardedModel: a model whose rows lie on several ranks and whose layers are on all of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hybridrec.embedding.collection import EmbeddingCollection
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.plan import Plan
from hybridrec.parallel.ranks import Ranks, sendable
from hybridrec.parallel.weighing import Weighing
from hybridrec.types import Batch, IdBlock, Ragged

if TYPE_CHECKING:
    from hybridrec.server.placing import ServedTables

# Whether each forward pass makes buffers those of rank 0: its name from torch 2.13 on, and before.
_NAMES = inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"


class ShardedModel(nn.Module):
    """What `hybridrec.shard` makes of a model, which is `module`; attributes that it lacks are those of the model.

    The loss of a rank is the mean over its own rows. Gradients become those of the mean over the rows of all ranks:
    each rank counts by its share of the rows, or of what `weigh` said.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        ranks: Ranks,
        exchange: Exchange,
        weighing: Weighing,
        served: ServedTables | None = None,
    ) -> None:
        super().__init__()
        self.module, self.served = module, served
        self.plan, self.ranks, self.exchange, self.weighing = plan, ranks, exchange, weighing
        # not among the modules: it holds the model once more
        self.__dict__["_dense"] = _data_parallel(module, weighing, exchange) if ranks.world > 1 else None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        run = self.module if self._dense is None or not torch.is_grad_enabled() else self._dense
        self.weighing.rows = rows_of((*inputs, *options.values()))
        try:
            return run(*inputs, **options)
        finally:
            self.weighing.rows = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def weigh(self, weight: float | None) -> None:
        """What the rows of the next forward passes count for together; None: their number."""
        self.weighing.stated = None if weight is None else float(weight)

    def prepare(self, ids: IdBlock | Batch, weight: float | None = None) -> None:
        """Send the ids of a batch ahead: its forward pass must come, in the same order on all ranks, or `forget`."""
        for part in self._sharded():
            part.prepare(ids, weight)

    def forget(self) -> None:
        """Batches that were prepared will not be looked up, those that were not yet; all ranks must say so."""
        for part in self._sharded():
            part.forget()

    def _sharded(self) -> Iterator[EmbeddingCollection]:
        for part in self.module.modules():
            if isinstance(part, EmbeddingCollection) and getattr(part.group, "prepares", False):
                yield part


def rows_of(inputs: Any) -> int | None:
    """The rows of the first batch, block or tensor among the arguments of a model; None where there is none.

    >>> rows_of(({"ids": torch.zeros(3, 2)},))
    3
    """
    if isinstance(inputs, Tensor):
        return inputs.shape[0] if inputs.dim() else None
    if isinstance(inputs, Batch):
        return len(inputs)
    if isinstance(inputs, IdBlock):
        return inputs.batch_size
    if isinstance(inputs, Ragged):
        return len(inputs)
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else ()
    return next((found for found in map(rows_of, parts) if found is not None), None)


def _data_parallel(module: nn.Module, weighing: Weighing, exchange: Exchange) -> DistributedDataParallel | None:
    """Layers on all ranks by torch, which begins with the weights of rank 0; None where there are none to train."""
    for buffer in module.buffers():  # of rank 0 as well; later all ranks change them alike
        there = sendable(buffer)
        distributed.broadcast(there, 0)
        if there is not buffer:
            buffer.copy_(there)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    options: Any = {"gradient_as_bucket_view": True, _SYNC_BUFFERS: False}
    made = DistributedDataParallel(module, **options)
    made.register_comm_hook(None, lambda _, bucket: _weighted_sum(weighing, exchange, bucket))  # takes no annotations
    return made


def _weighted_sum(weighing: Weighing, exchange: Exchange, bucket: Any) -> torch.futures.Future[Tensor]:
    """Each rank's gradients count by its share of the rows; their sum is that of the global mean."""
    mine = bucket.buffer().mul_(weighing.last)
    alone = bucket.index() == 0 and bucket.is_last()  # nothing is left to do meanwhile
    if alone and (summed := exchange.summed(mine)) is not None:
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(summed)
        return done
    reduced: Any = distributed.all_reduce(mine, async_op=True)
    return reduced.get_future().then(lambda done: done.value()[0])
