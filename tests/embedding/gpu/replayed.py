"""Training steps as CUDA graphs, with tables of any kind on the device under test.

On a card they are captured and replayed. Under the interpreter a replay does the captured work anew, over the same
memory, with lookups that take it for a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding.gpu import lookup
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.replay import Replay
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.train import fixed_batch, graphs
from hybridrec.train.graphs import StepGraphs
from hybridrec.train.losses import make_loss
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner, train_step
from hybridrec.types import Batch, IdBlock, id_block
from tests.embedding.gpu.on_device import SIZES
from tests.gpu import DEVICE, INTERPRETED


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no card, something that does what a graph would do."""
    if INTERPRETED:
        done = SimpleNamespace(synchronize=lambda: None, query=lambda: True)
        stream = SimpleNamespace(record_event=lambda: done)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
        monkeypatch.setattr(graphs, "captured", lambda work: done_anew(work))
        monkeypatch.setattr(graphs, "SEEN", 1)
        monkeypatch.setattr(id_block, "readable", lambda offsets: False)  # as it is on a card
        monkeypatch.setattr(fixed_batch, "room", lambda count: count + 2)
        monkeypatch.setattr(Replay, "run", lambda self, key, launches: launches())


def done_anew(work: Callable[[], None]) -> Callable[[], None]:
    """What does the work as a replay would, and once as the capture, whose results nobody sees."""

    def replay() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup, "capturing", lambda device: True)
            work()

    replay()
    return replay


class Scored(nn.Module):
    """Outputs whose gradients are multiples of a power of two, so that their sums are exact in any order."""

    def __init__(self, tables: Sequence[hr.Table], store: Callable[[hr.Table, int], DeviceStore]) -> None:
        super().__init__()
        self.embeddings = hr.EmbeddingCollection(tables, seed=3)
        self.embeddings.device = DEVICE
        made = {name: store(table, 3) for name, table in self.embeddings.tables.items()}
        self.embeddings.adopt(DeviceGroup(made, self.embeddings.trainable, SIZES[0]))

    def forward(self, batch: Batch) -> Tensor:
        out = self.embeddings(batch)
        return (out.flat * batch.dense).sum(1) + sum(each.values.sum() for each in out.sequences.values()) / 8


class Run:
    """A model and its learner, which sees each batch one step before it comes."""

    def __init__(
        self,
        tables: Sequence[hr.Table],
        store: Callable[[hr.Table, int], DeviceStore],
        optimizer: Callable[[Any], hr.optim.RowOptimizer] = lambda model: hr.optim.RowWiseAdagrad(model, lr=0.125),
        graphs: bool = True,
    ) -> None:
        self.model: Any = Scored(tables, store)
        self.group: DeviceGroup = self.model.embeddings.group
        loss = make_loss(lambda outputs, batch: outputs)
        made = StepGraphs() if graphs else None
        self.learner = Learner(self.model, loss, rows=optimizer(self.model), device=DEVICE, graphs=made)
        self._coming: Placed | None = None

    @property
    def graphs(self) -> StepGraphs:
        assert self.learner.graphs is not None
        return self.learner.graphs

    def train(self, batches: list[Batch]) -> list[float]:
        """The losses."""
        found = []
        for number, batch in enumerate(batches):
            now = self._coming or self.learner.place(batch)
            self._coming = self.learner.place(batches[number + 1]) if number + 1 < len(batches) else None
            found.append(train_step(self.learner, [now]).loss)
        self.learner.settle()
        return found

    def evaluate(self, batch: Batch) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            found = self.learner.outputs(self.learner.place(batch).batch)
        self.model.train()
        return found


def drawn(ids: IdBlock, width: int) -> Batch:
    """A batch in which each number of the vectors has a gradient of its own, some eighths."""
    return Batch(ids, torch.randint(-8, 9, (ids.batch_size, width)) / 8, torch.zeros(ids.batch_size))


def scored(ids: IdBlock, width: int, factor: float = 1.0) -> Batch:
    """A batch in which all have the same."""
    return Batch(ids, torch.full((ids.batch_size, width), factor), torch.zeros(ids.batch_size))
