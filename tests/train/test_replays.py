"""Models over tables on a device learn what they learn on the CPU: replayed, or in a plain loop; without a card too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu import lookup
from hybridrec.models import DLRM, DCNv2, DeepFM, Model
from hybridrec.train import graphs
from hybridrec.train.graphs import StepGraphs
from hybridrec.train.losses import make_loss
from hybridrec.train.step import Learner, train_step
from hybridrec.types import Batch
from tests.embedding.gpu import replayed
from tests.gpu import DEVICE, INTERPRETED, needs_gpu
from tests.train.on_device import put_tables

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="tests/train/test_on_a_gpu.py is for cards")]
replays = replayed.replays  # a fixture of all tests here

ROWS, NAMES = 24, [f"id{n}" for n in range(3)]
KINDS: dict[type[Model], dict[str, Any]] = {DLRM: {"bottom": (32,), "top": (16,)}, DCNv2: {}, DeepFM: {}}


def as_a_graph(work: Callable[[], None]) -> Callable[[], None]:
    """What does the work at each replay and not before, so that nothing is counted, nor added to gradients, twice."""

    def replay() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup, "capturing", lambda device: True)
            work()

    return replay


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch, replays: None) -> None:
    monkeypatch.setattr(graphs, "captured", as_a_graph)


def data() -> list[Batch]:
    """Two full batches, an empty one, two full ones, an empty one, a short one and a full one."""
    draw, count = np.random.default_rng(0), 5 * ROWS + 7
    columns: dict[str, Any] = {name: draw.integers(0, 20, count) for name in NAMES}
    columns |= {f"n{n}": draw.normal(size=count).astype(np.float32) for n in range(4)}
    columns["click"] = draw.integers(0, 2, count)
    batches = [batch.clone() for batch in hr.data.table(columns, batch_size=ROWS, label="click", threads=1)]
    names = batches[0].dense_names, batches[0].label_names
    no_ids = hr.IdBlock.from_ragged({name: torch.zeros(0, dtype=torch.int64) for name in NAMES})
    empty = Batch(no_ids, torch.zeros(0, 4), torch.zeros(0), dense_names=names[0], label_names=names[1])
    return [*batches[:2], empty, *batches[2:4], empty, batches[5], batches[4]]


def model_of(kind: type[Model], on_device: bool) -> Model:
    columns = {name: [1] for name in NAMES} | {f"n{n}": [0.5] for n in range(4)} | {"click": [1]}
    schema = hr.data.table(columns, batch_size=1, label="click").schema
    torch.manual_seed(0)
    model = kind(schema, 16, tables={name: {"rows": 20} for name in NAMES}, **KINDS[kind])
    if on_device:
        put_tables(model)
    return model


def same_rows(one: Model, other: Model) -> None:
    for name, rows in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name].cpu(), rows, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_steps_are_those_of_the_cpu_with_empty_batches_between(kind: type[Model]) -> None:
    models, losses = [model_of(kind, on_device) for on_device in (False, True)], []
    for model, device in zip(models, (None, DEVICE), strict=True):
        dense, rows = torch.optim.SGD(model.parameters(), lr=0.1), hr.optim.SGD(model, lr=0.1)
        made = None if device is None else StepGraphs()
        learner = Learner(model, make_loss("bce"), dense, rows, device=device, graphs=made)
        losses.append([train_step(learner, [batch]).loss for batch in data()])
        learner.settle()
        assert made is None or (made.replays, made.refused) == (4, None)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert [n for n, loss in enumerate(losses[1]) if loss == 0.0] == [2, 5], "batches without rows"
    same_rows(*models)


def test_a_plain_loop_is_that_of_the_cpu() -> None:
    models = [model_of(DeepFM, on_device) for on_device in (False, True)]
    for model, device in zip(models, (torch.device("cpu"), DEVICE), strict=True):
        dense, rows = torch.optim.SGD(model.parameters(), lr=0.1), hr.optim.RowWiseAdagrad(model, lr=0.1)
        for batch in (each.to(device) for each in data() if len(each)):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch.label)
            loss.backward()
            dense.step()
            dense.zero_grad()
            rows.step()
    same_rows(*models)
