"""Every part works in a plain loop and inside a LightningModule."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hybridrec as hr
from hybridrec.metrics import MetricSet
from tests.train.clicks import dataset, model_of, weights


def test_the_parts_work_in_a_plain_loop():
    ds = dataset(2000)
    model = model_of(ds)
    dense, rows = torch.optim.Adam(model.parameters()), hr.optim.RowWiseAdagrad(model, lr=0.05)
    for _ in range(4):
        for batch in ds:
            torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch.label).backward()
            dense.step()
            dense.zero_grad()
            rows.step()
    model.eval()
    metrics = MetricSet(labels=("click",), metrics=("auc",))
    with torch.no_grad():
        for batch in ds:
            metrics.update(model(batch).sigmoid(), batch.label)
    assert metrics.compute()["auc"] > 0.8


@pytest.mark.filterwarnings("ignore")  # Lightning's own, many and changing
def test_the_parts_work_inside_a_lightning_module(tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed; pip install lightning")
    from lightning.pytorch import Trainer

    from recipes.lightning_module import ClickModule

    torch.manual_seed(0)
    ds = dataset(2000)
    module = ClickModule(ds.schema, dim=4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=4, default_root_dir=tmp_path, enable_checkpointing=False, **quiet)
    loader = DataLoader(ds, batch_size=None)
    trainer.fit(module, loader, loader)
    assert trainer.callback_metrics["auc"] > 0.8
    assert module.model.embeddings["user"].clock == 80

    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = ClickModule(ds.schema, dim=4)
    again.load_state_dict(torch.load(tmp_path / "a.ckpt")["state_dict"])
    rows = weights(again.model)["rows of user"]
    assert torch.equal(rows, weights(module.model)["rows of user"])
