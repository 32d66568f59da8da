"""Lookups on the device inside compiled models: they stay outside of the graph, and train as they do without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import QUICK, OnDevice, ids, lists
from tests.gpu import DEVICE, needs_gpu

pytestmark = [
    *needs_gpu,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # of the compiler's own code
]

TABLES = [
    hr.Table("item", dim=4, rows=9, features=["item", "seen"], combiner={"item": "mean", "seen": "none"}),
    hr.Table("user", dim=5, rows=30),
]


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Nothing compiled is left from other tests, or for them."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """Pooled features and a sequence below a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = OnDevice(hr.EmbeddingCollection(TABLES, seed=3), QUICK)
        self.layer = nn.Linear(9, 1, device=DEVICE)

    def forward(self, block: IdBlock) -> Tensor:
        flat, (seen,) = self.embeddings(block)
        return self.layer(flat).sum() + seen.square().sum()


def trained(model: Model, run: Any) -> list[float]:
    """The losses of steps on batches of which each has another size."""
    rows, dense, losses = hr.optim.Adagrad(model, lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1), []
    for size in (4, 6, 3):
        torch.manual_seed(size)
        block = IdBlock.from_ragged({"item": lists(9, 3, size), "seen": lists(9, 2, size), "user": ids(30, size, 2)})
        loss = run(block)
        loss.backward()
        dense.step()
        dense.zero_grad()
        rows.step()
        losses.append(loss.item())
    return losses


def test_a_compiled_model_trains_like_an_eager_one_with_one_break_of_its_graph():
    eager, compiled = Model(), Model()
    torch._dynamo.utils.counters.clear()
    found = trained(compiled, torch.compile(compiled, backend="aot_eager"))
    assert len(torch._dynamo.utils.counters["graph_break"]) == 1
    assert found == pytest.approx(trained(eager, eager), rel=1e-5)
    for name, store in compiled.embeddings.stores.items():
        torch.testing.assert_close(store.weight, eager.embeddings.stores[name].weight, atol=1e-5, rtol=1e-4)
