"""Our side of `embedding_gpu.py`: an EmbeddingCollection, a row optimizer, and `train_step` for whole steps.

As graphs, the ids are copied into a block of its own first; that copy is timed too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_models import LARGE, Sample, Shape, averaged, floor_bytes, sample, shape_of
from gpu_process import Measured, Task, affordable, captured, copy_gb_per_s, tidy
from gpu_profile import kernels_us
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.models.dlrm import DLRMNet
from hybridrec.models.layers import MLP
from hybridrec.optim import RowOptimizer
from hybridrec.train.losses import make_loss
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner, train_step
from hybridrec.types import Batch, IdBlock

LR, EPS, DENSE_LR = 0.03, 1e-8, 0.001
PROFILED = 8  # steps


class Layers(nn.Module):
    """The dense part: vectors [B, W] and dense [B, n] to logits [B]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.stride = shape.stride
        self.mlp = MLP(-(-shape.width // shape.stride) + shape.numbers, shape.hidden, out=1)

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        return self.mlp(averaged(vectors, self.stride), dense).squeeze(1)


class DotLayers(nn.Module):
    """The dense part of a DLRM, with the same inputs and outputs."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim = shape.tables[0][1]
        self.net = DLRMNet(len(shape.features), dim, shape.numbers, 1, shape.bottom, shape.hidden, dropout=0.0)

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        return self.net(vectors, dense).squeeze(1)


class Synthetic(nn.Module):
    """A model over a collection that other models may share."""

    def __init__(self, embeddings: hr.EmbeddingCollection, layers: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.layers = embeddings, layers

    def forward(self, batch: Batch) -> Tensor:
        return self.layers(self.embeddings(batch.ids).flat, batch.dense)


def collection(
    shape: Shape, device: str, cache: float | None = None, dynamic: bool = False
) -> hr.EmbeddingCollection:  # fmt: skip
    """The tables; feature f3 is the fourth of the shape. The device may have but a share of the rows of large ones.

    Dynamic ones may have as many rows.
    """
    names: dict[int, list[str]] = {}
    for number, (table, _) in enumerate(shape.features):
        names.setdefault(table, []).append(f"f{number}")
    dtype = torch.float16 if shape.half else torch.float32
    tables = [
        hr.Table(f"t{at}", dim=dim, features=names[at], dtype=dtype, **_size(rows, cache, dynamic))
        for at, (rows, dim) in enumerate(shape.tables)
    ]
    beside = shape.stride == 1 and not shape.bottom  # the numbers go into the layers with the vectors
    return hr.EmbeddingCollection(tables, device=device, room=shape.numbers if beside else None)


def _size(rows: int, cache: float | None, dynamic: bool) -> dict[str, Any]:
    """The options of a table with so many rows."""
    return {"capacity": rows} if dynamic else {"rows": rows, "cache": cache if rows >= LARGE else None}


def optimizer(shape: Shape, emb: nn.Module, **options: Any) -> RowOptimizer:
    kind = hr.optim.RowWiseAdagrad if shape.rowwise else hr.optim.Adagrad
    return kind(emb, lr=LR, eps=EPS, **options)


def batch_of(shape: Shape, rows: int, drawn: Sample) -> Batch:
    """The sample as our loader hands it over."""
    hotness = tuple(hot for _, hot in shape.features)
    starts = [0]
    for hot in hotness:
        starts.append(starts[-1] + rows * hot)
    offsets = drawn.ids.new_empty(0, rows + 1)
    names = tuple(f"f{number}" for number in range(len(hotness)))
    return Batch(IdBlock(names, drawn.ids, tuple(starts), hotness, offsets, batch_size=rows), drawn.dense, drawn.label)


def model_of(shape: Shape, emb: hr.EmbeddingCollection, device: str) -> Synthetic:
    """New layers over these tables."""
    return Synthetic(emb, (DotLayers if shape.bottom else Layers)(shape).to(device))


def learner_of(shape: Shape, emb: hr.EmbeddingCollection, rows: RowOptimizer, device: str, **options: Any) -> Learner:
    """New layers over these tables, and an optimizer for them with these options."""
    model = model_of(shape, emb, device)
    dense = torch.optim.Adagrad(model.layers.parameters(), lr=DENSE_LR, foreach=True, **options)
    return Learner(model, make_loss("bce"), dense, rows, device=None if device == "cpu" else torch.device(device))


def with_graphs(learner: Learner) -> Learner:
    """The learner, its steps run as CUDA graphs."""
    from hybridrec.train.graphs import StepGraphs  # which needs Triton

    learner.graphs = StepGraphs()
    return learner


class Ours:
    """The parts that are timed, over one collection."""

    def __init__(self, task: Task, shape: Shape) -> None:
        self.task, self.shape = task, shape
        self.emb = collection(shape, task.device)
        self.rows = optimizer(shape, self.emb)
        output = 4 * task.batch * shape.width
        ids = 8 * task.batch * shape.ids
        self.count = affordable(task.batches, ids, 5 * output + 8 * ids, task.device)
        drawn = [sample(shape, task.batch, number, task.device) for number in range(self.count)]
        self.ids_sum = sum(int(each.ids.sum()) for each in drawn)
        self.batches = [batch_of(shape, task.batch, each) for each in drawn]

    def gradient(self) -> Tensor:
        """As layers hand it over: its rows lie as far apart as those of the vectors."""
        with torch.no_grad():
            stride = self.emb(self.batches[0].ids).flat.stride(0)
        return (1e-3 * torch.randn(self.task.batch, stride, device=self.task.device))[:, : self.shape.width]

    def forward(self) -> Callable[[Batch], Any]:
        self.emb.eval()

        def step(batch: Batch) -> None:
            with torch.no_grad():
                self.emb(batch.ids)

        return step

    def both(self) -> Callable[[Batch], Any]:
        self.emb.train()
        gradient = self.gradient()

        def step(batch: Batch) -> None:
            self.emb(batch.ids).flat.backward(gradient)
            self.rows.step()

        return step

    def graph_of(self, step: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        own = self.batches[0].clone()
        graph = captured(lambda: step(own))

        def replay(batch: Batch) -> None:
            own.ids.values.copy_(batch.ids.values)
            graph.replay()

        return replay

    def whole(self, *, compiled: bool, graphs: bool) -> Callable[[Batch], Any]:
        self.emb.train()
        learner = learner_of(self.shape, self.emb, self.rows, self.task.device)
        if compiled:
            learner.model.get_submodule("layers").compile()
        if graphs:
            with_graphs(learner)
        return lambda batch: train_step(learner, [Placed(batch, float(len(batch)))])  # as the Trainer's feed places it


def facts_of(task: Task, shape: Shape) -> dict[str, Any]:
    """What is measured before the tables take the memory: the copy speed, and the bytes of a step."""
    found: dict[str, Any] = {"copy_gb_per_s": copy_gb_per_s(task.device)}
    found["floor"] = floor_bytes(shape, task.batch, sample(shape, task.batch, 0, task.device).ids)
    tidy(task)
    if task.device != "cpu":
        torch.cuda.reset_peak_memory_stats()  # the copies were larger than some models
    return found


def profiles(ours: Ours, measured: Measured) -> dict[str, Any]:
    """Kernels of forward with backward, and of the fastest whole step."""
    found: dict[str, Any] = {}
    steps = measured.ms.get("step", {})
    best = min(steps, key=lambda variant: steps[variant], default="eager")
    made = {
        "fwd_bwd": ours.both,
        "step": lambda: ours.whole(compiled="compiled" in best, graphs="graphs" in best),
    }
    for part, make in made.items():
        try:
            found[part] = kernels_us(make(), (ours.batches * PROFILED)[:PROFILED])
        except Exception as reason:
            measured.failures[f"profile {part}"] = f"{type(reason).__name__}: {reason}"[:400]
        tidy(ours.task)
    return found


def main() -> None:
    task = Task.received()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shape = shape_of(task.model, task.most_rows)
    facts = facts_of(task, shape)
    ours = Ours(task, shape)
    facts |= {"batches": ours.count, "ids_sum": ours.ids_sum}
    measured = Measured(task, facts)
    gpu = task.device != "cpu"
    measured.time("fwd", "eager", ours.forward, ours.batches)
    measured.time("fwd_bwd", "eager", ours.both, ours.batches)
    measured.time("step_eager", "eager", lambda: ours.whole(compiled=False, graphs=False), ours.batches)
    if gpu:
        for graphs in (False, True):
            name = "graphs, compiled" if graphs else "compiled"
            measured.time("step", name, lambda graphs=graphs: ours.whole(compiled=True, graphs=graphs), ours.batches)
        measured.time("step", "graphs", lambda: ours.whole(compiled=False, graphs=True), ours.batches)
        measured.time("fwd", "graph", lambda: ours.graph_of(ours.forward()), ours.batches)
        if not shape.half:  # whose steps have a number of their own, which a capture by hand would repeat
            measured.time("fwd_bwd", "graph", lambda: ours.graph_of(ours.both()), ours.batches)
    if "step_eager" in measured.ms:
        measured.ms.setdefault("step", {}).update(measured.ms["step_eager"])
    if gpu and task.profile:
        facts["kernels_us"] = profiles(ours, measured)
    measured.tell()


if __name__ == "__main__":
    main()
