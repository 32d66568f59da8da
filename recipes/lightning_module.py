"""The parts of hybridrec inside a LightningModule: the loader, a model, a row optimizer.

Lightning's automatic optimization knows one optimizer a step; rows have one of their own, so the step is by hand.
"""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from hybridrec.data import Schema
from hybridrec.metrics import MetricSet
from hybridrec.models import DeepFM
from hybridrec.optim import RowWiseAdagrad
from hybridrec.types import Batch


class ClickModule(LightningModule):
    """A DeepFM with two optimizers. Train it on `DataLoader(dataset, batch_size=None)`."""

    def __init__(self, schema: Schema, dim: int = 16) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = DeepFM(schema, dim)
        self.metrics = MetricSet(labels=self.model.labels, metrics=("auc",))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.model.parameters(), lr=1e-3), RowWiseAdagrad(self.model, lr=0.05)]

    def training_step(self, batch: Batch, number: int) -> None:
        dense, rows = self.optimizers()  # pyright: ignore[reportGeneralTypeIssues] (a list, as configured)
        loss = self._loss(self.model(batch), batch)
        self.manual_backward(loss)  # queues the gradients of rows
        dense.step()
        dense.zero_grad()
        rows.step()
        self.log("loss", loss, batch_size=len(batch))

    def validation_step(self, batch: Batch, number: int) -> None:
        assert batch.label is not None
        self.metrics.update(self.model(batch).sigmoid(), batch.label)

    def on_validation_epoch_end(self) -> None:
        self.log("auc", self.metrics.compute()["auc"])
        self.metrics.reset()

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        assert batch.label is not None
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
