"""Peer: TorchRec's own DLRM under DistributedModelParallel on Gloo, row-wise Adagrad fused into the backward.

The plan is that of TorchRec's planner, told the batch size. Kinds: `torchrec` is the plain loop, `torchrec_pipeline`
its TrainPipelineSparseDist, which exchanges the ids of the next batch during this one. With `_rewritten` the products
of pairs are picked by `index_select`, which is quicker on a CPU than what its DLRM does. The KeyedJaggedTensor is built
inside the clock.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402  (after the warnings of what follows are off)
import torch  # noqa: E402
import torchrec  # noqa: E402
from parallel_step import mean_losses, timed  # noqa: E402
from parallel_workload import BOTTOM, EPS, LR, NUMBERS, SQUARES, TOP, Rows, Task, load, say, weights_file  # noqa: E402
from torch import Tensor, distributed, nn  # noqa: E402
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward  # noqa: E402
from torch.nn.functional import binary_cross_entropy_with_logits  # noqa: E402
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology  # noqa: E402
from torchrec.models import dlrm  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad  # noqa: E402
from torchrec.streamable import Pipelineable  # noqa: E402

CPU = torch.device("cpu")


class PickedPairs(nn.Module):
    """The interaction of TorchRec's DLRM with its pairs picked by one flat index."""

    flat: Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(fields + 1, fields + 1, offset=1)
        self.register_buffer("flat", first * (fields + 1) + second)

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        both = torch.cat((dense_features.unsqueeze(1), sparse_features), 1)
        products = torch.bmm(both, both.transpose(1, 2)).flatten(1)
        return torch.cat((dense_features, products.index_select(1, self.flat)), 1)


class Net(nn.Module):
    """DLRM and its loss: what TorchRec's pipeline wants a model to give."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        tables = [
            torchrec.EmbeddingBagConfig(
                name=f"t{i}", embedding_dim=task.dim, num_embeddings=task.rows, feature_names=[f"id{i}"]
            )
            for i in range(task.tables)
        ]
        bags = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        _apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": LR, "eps": EPS})
        self.dlrm = dlrm.DLRM(bags, NUMBERS, [*BOTTOM, task.dim], [*TOP, 1], dense_device=CPU)
        if task.kind.endswith("rewritten"):
            self.dlrm.inter_arch = PickedPairs(task.tables)

    def forward(self, rows: Jagged) -> tuple[Tensor, Tensor]:
        loss = binary_cross_entropy_with_logits(self.dlrm(rows.dense, rows.ids).squeeze(1), rows.label)
        return loss, loss.detach()


class Jagged(Pipelineable):
    """A batch as TorchRec takes it."""

    def __init__(self, ids: torchrec.KeyedJaggedTensor, dense: Tensor, label: Tensor) -> None:
        self.ids, self.dense, self.label = ids, dense, label

    def to(self, device: torch.device, non_blocking: bool = False) -> Jagged:
        return self

    def record_stream(self, stream: Any) -> None:
        pass


Ready = tuple[Tensor, Tensor, Tensor, Tensor]  # ids [T * B], their lengths, dense, label


def ready(task: Task, rows: Rows) -> Ready:
    values = torch.from_numpy(np.ascontiguousarray(rows.ids).ravel())
    lengths = torch.ones(task.tables * len(rows.label), dtype=torch.int64)
    return values, lengths, torch.from_numpy(rows.dense), torch.from_numpy(rows.label)


def jagged(task: Task, batch: Ready) -> Jagged:
    keys = [f"id{i}" for i in range(task.tables)]
    return Jagged(torchrec.KeyedJaggedTensor(keys=keys, values=batch[0], lengths=batch[1]), batch[2], batch[3])


def sharded(task: Task) -> DistributedModelParallel:
    """The model by the plan of TorchRec's planner."""
    net, sharders = Net(task), [EmbeddingBagCollectionSharder()]
    topology = Topology(world_size=task.world, local_world_size=task.world, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=task.batch)
    group = distributed.group.WORLD
    assert group is not None
    plan = planner.collective_plan(net, sharders, group)  # pyright: ignore[reportArgumentType]
    return DistributedModelParallel(net, device=CPU, plan=plan, sharders=sharders)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def copy_weights(task: Task, model: DistributedModelParallel) -> None:
    """Our weights into TorchRec's model, in place: each rank its own part."""
    with np.load(weights_file(task)) as found:
        state = model.state_dict()
        for name, value in state.items():
            if ".t" in name:
                table = name.split(".")[-2]
                parts = value.local_shards() if hasattr(value, "local_shards") else None
                for shard in parts or ():
                    (row, column), (height, width) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                    shard.tensor.copy_(torch.from_numpy(found[table][row : row + height, column : column + width]))
                if parts is None:
                    value.copy_(torch.from_numpy(found[table]))
        for part, layers in (("bottom", model.module.dlrm.dense_arch), ("top", model.module.dlrm.over_arch)):
            for i, layer in enumerate(each for each in layers.modules() if isinstance(each, nn.Linear)):
                layer.weight.copy_(torch.from_numpy(found[f"{part}.{i}.weight"]))
                layer.bias.copy_(torch.from_numpy(found[f"{part}.{i}.bias"]))


def schemes(model: DistributedModelParallel) -> dict[str, int]:
    """How many tables the planner gave to each scheme."""
    found: dict[str, int] = {}
    for module in model.plan.plan.values():
        for choice in module.values():
            name = f"{choice.sharding_type}/{choice.compute_kernel}"
            found[name] = found.get(name, 0) + 1
    return found


def stepper(task: Task, model: DistributedModelParallel, batches: list[Ready]) -> Callable[[Ready], Any]:
    """One update. The pipeline takes the batches from an iterator that goes round them."""
    dense = [parameter for _, parameter in in_backward_optimizer_filter(model.named_parameters())]
    optimizer = torch.optim.Adagrad(dense, lr=LR, initial_accumulator_value=SQUARES)
    if "pipeline" in task.kind:
        pipeline = TrainPipelineSparseDist(model, optimizer, CPU)
        endless: Iterator[Jagged] = (jagged(task, batch) for batch in cycle(batches))
        return lambda batch: pipeline.progress(endless)

    def step(batch: Ready) -> Tensor:
        optimizer.zero_grad()
        loss, shown = model(jagged(task, batch))
        loss.backward()
        optimizer.step()
        return shown

    return step


def main() -> None:
    task, rank = Task.from_json(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    model = sharded(task)
    batches = [ready(task, rows) for rows in load(task, rank)]
    step = stepper(task, model, batches)
    answer: dict[str, Any] = {"plan": schemes(model)}
    if task.kind == "torchrec_check":
        copy_weights(task, model)
        answer |= {"losses": mean_losses(task, batches, lambda batch: float(step(batch)))}
    else:
        answer |= timed(task, batches, step)
    if rank == 0:
        say({**answer, "versions": {"torchrec": torchrec.__version__}})
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # leaving the group now and then ends in "terminate called without an active exception"


if __name__ == "__main__":
    main()
