"""Peer of `embedding_gpu.py`: FBGEMM's fused embedding operator on the GPU, which TorchRec runs on.

`step_eager` is how examples run it: vectors and numbers joined, no compilation. `step` is tried at its best: the input
of the layers padded to a multiple of 16, the dense part compiled, with CUDA graphs by torch.compile, by hand
around the dense part with its optimizer, and around everything. A variant that FBGEMM cannot do says why.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import fbgemm_gpu
import torch
import torch.nn.functional as F
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from gpu_models import Sample, Shape, averaged, sample, shape_of
from gpu_process import Measured, Task, affordable, captured
from torch import Tensor, nn

LR, EPS, DENSE_LR, ALIGNED = 0.03, 1e-8, 0.001, 16


def tables_of(shape: Shape, device: str, cached: Callable[[int], bool] = lambda rows: False, **options: Any) -> Any:
    """All tables in one operator that also updates them; a table with so many rows may be `cached` on the card."""
    places = {True: EmbeddingLocation.MANAGED_CACHING, False: EmbeddingLocation.DEVICE}
    made = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(rows, dim, places[cached(rows)], ComputeDevice.CUDA) for rows, dim in shape.tables],
        feature_table_map=[table for table, _ in shape.features],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD if shape.rowwise else EmbOptimType.EXACT_ADAGRAD,
        learning_rate=LR,
        eps=EPS,
        weights_precision=SparseType.FP16 if shape.half else SparseType.FP32,
        output_dtype=SparseType.FP32,
        pooling_mode=PoolingMode.SUM,
        device=torch.device(device),
        **options,
    )
    for weight in made.split_embedding_weights():
        weight.data.uniform_(-0.05, 0.05)
    return made


class Layers(nn.Module):
    """The dense part up to the loss, the input of its MLP padded with zeros to a multiple of `aligned` columns."""

    def __init__(self, shape: Shape, batch: int, aligned: int = 1) -> None:
        super().__init__()
        self.stride = shape.stride
        self._make(-(-shape.width // shape.stride) + shape.numbers, shape.hidden, batch, aligned)

    def _make(self, width: int, hidden: tuple[int, ...], batch: int, aligned: int) -> None:
        pad = -width % aligned
        self.register_buffer("zeros", torch.zeros(batch, pad) if pad else None)
        self.mlp = nn.Sequential(*layers_of((width + pad, *hidden)), nn.Linear(hidden[-1], 1))

    def forward(self, vectors: Tensor, dense: Tensor, label: Tensor) -> Tensor:
        parts = self.joined(vectors, dense)
        parts += [self.zeros] if isinstance(self.zeros, Tensor) else []
        return F.binary_cross_entropy_with_logits(self.mlp(torch.cat(parts, 1)).squeeze(1), label)

    def joined(self, vectors: Tensor, dense: Tensor) -> list[Tensor]:
        """What the MLP reads."""
        return [averaged(vectors, self.stride), dense]


class DotLayers(Layers):
    """The same for a DLRM."""

    def __init__(self, shape: Shape, batch: int, aligned: int = 1) -> None:
        nn.Module.__init__(self)
        dim, vectors = shape.tables[0][1], len(shape.features) + 1
        self.dim = dim
        self.bottom = nn.Sequential(*layers_of((shape.numbers, *shape.bottom, dim)))
        first, second = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("pairs", first * vectors + second)
        self._make(dim + len(first), shape.hidden, batch, aligned)

    def joined(self, vectors: Tensor, dense: Tensor) -> list[Tensor]:
        below = self.bottom(dense)
        fields = torch.cat([below.unsqueeze(1), vectors.unflatten(1, (-1, self.dim))], 1)
        products = (fields @ fields.transpose(1, 2)).flatten(1)
        assert isinstance(self.pairs, Tensor)
        return [below, products.index_select(1, self.pairs)]


def layers_of(sizes: tuple[int, ...]) -> list[nn.Module]:
    """Linear layers from each size to the next, with relu behind each."""
    return [part for before, after in pairwise(sizes) for part in (nn.Linear(before, after), nn.ReLU())]


Step = Callable[[Sample], Any]


class Peer:
    """The parts that are timed, over one operator."""

    def __init__(self, task: Task, shape: Shape, emb: Any) -> None:
        self.task, self.shape, self.emb = task, shape, emb
        output, ids = 4 * task.batch * shape.width, 8 * task.batch * shape.ids
        self.count = affordable(task.batches, ids, 5 * output + 8 * ids, task.device)
        self.samples = [sample(shape, task.batch, number, task.device) for number in range(self.count)]
        self.ids_sum = sum(int(each.ids.sum()) for each in self.samples)
        hot = torch.tensor([hot for _, hot in shape.features], device=task.device)
        self.offsets = F.pad(hot.repeat_interleave(task.batch).cumsum(0), (1, 0))  # the same for all batches

    @property
    def facts(self) -> dict[str, Any]:
        version = f"{fbgemm_gpu.__version__} ({fbgemm_gpu.__variant__})"
        return {"batches": self.count, "ids_sum": self.ids_sum, "versions": {"fbgemm_gpu": version}}

    def vectors(self, given: Sample) -> Tensor:
        return self.emb(given.ids, self.offsets)

    def dense(self, aligned: int) -> tuple[Layers, torch.optim.Optimizer]:
        kind = DotLayers if self.shape.bottom else Layers
        layers = kind(self.shape, self.task.batch, aligned).to(self.task.device)
        return layers, torch.optim.Adagrad(layers.parameters(), lr=DENSE_LR, foreach=True)

    # -- the table part ----------------------------------------------------------------------------------------

    def forward(self) -> Step:
        def step(given: Sample) -> None:
            with torch.no_grad():
                self.vectors(given)

        return step

    def both(self) -> Step:
        gradient = 1e-3 * torch.randn(self.task.batch, self.shape.width, device=self.task.device)
        return lambda given: self.vectors(given).backward(gradient)

    def graph_of(self, step: Step) -> Step:
        """The step as one graph over a sample of its own, into which every batch is copied."""
        first = self.samples[0]
        own = Sample(first.ids.clone(), first.dense.clone(), first.label.clone())
        graph = captured(lambda: step(own))

        def replay(given: Sample) -> None:
            own.ids.copy_(given.ids)
            own.dense.copy_(given.dense)
            own.label.copy_(given.label)
            graph.replay()

        return replay

    # -- whole steps -------------------------------------------------------------------------------------------

    def eager(self) -> Step:
        return self._step(*self.dense(1))

    def compiled(self, mode: str | None = None) -> Step:
        layers, optimizer = self.dense(ALIGNED)
        layers.compile(mode=mode)
        step = self._step(layers, optimizer)
        if mode is None:
            return step

        def begun(given: Sample) -> None:
            torch.compiler.cudagraph_mark_step_begin()
            step(given)

        return begun

    def _step(self, layers: Layers, optimizer: torch.optim.Optimizer) -> Step:
        def step(given: Sample) -> None:
            loss = layers(self.vectors(given), given.dense, given.label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def dense_graph(self) -> Step:
        """Layers, their gradients and their optimizer as one graph between FBGEMM's forward and backward."""
        layers, optimizer = self.dense(ALIGNED)
        layers.compile()
        size = (self.task.batch, self.shape.width)
        vectors = torch.zeros(size, device=self.task.device, requires_grad=True)
        dense, label = self.samples[0].dense.clone(), self.samples[0].label.clone()

        def work() -> None:
            optimizer.zero_grad(set_to_none=True)
            vectors.grad = None
            layers(vectors, dense, label).backward()
            optimizer.step()

        graph = captured(work)
        gradient = vectors.grad
        assert gradient is not None

        def step(given: Sample) -> None:
            found = self.vectors(given)
            with torch.no_grad():
                vectors.copy_(found)
            dense.copy_(given.dense)
            label.copy_(given.label)
            graph.replay()
            found.backward(gradient)

        return step


def main() -> None:
    task = Task.received()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shape = shape_of(task.model, task.most_rows)
    peer = Peer(task, shape, tables_of(shape, task.device))
    measured, samples = Measured(task, peer.facts), peer.samples
    measured.time("fwd", "eager", peer.forward, samples)
    measured.time("fwd_bwd", "eager", peer.both, samples)
    measured.time("step_eager", "eager", peer.eager, samples)
    measured.time("step", "compiled", peer.compiled, samples)
    measured.time("step", "compiled, reduce-overhead", lambda: peer.compiled("reduce-overhead"), samples)
    measured.time("step", "compiled, graph of the dense part", peer.dense_graph, samples)
    # What may not be possible comes last: a capture that fails can spoil the process.
    measured.time("fwd", "graph", lambda: peer.graph_of(peer.forward()), samples)
    measured.time("fwd_bwd", "graph", lambda: peer.graph_of(peer.both()), samples)
    measured.time("step", "compiled, one graph", lambda: peer.graph_of(peer.compiled()), samples)


if __name__ == "__main__":
    main()
