"""What a training step on a GPU launches: its operators and kernels, listed under Triton's interpreter.

A copy that comes back shows here: no card is needed to see that it is one more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.models import DLRM, DCNv2, MMoE, Model
from hybridrec.train.graphs import StepGraphs
from hybridrec.train.losses import make_loss
from hybridrec.train.step import Learner, train_step
from tests.embedding.gpu import replayed
from tests.gpu import DEVICE, INTERPRETED, needs_gpu
from tests.train.on_device import put_tables

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="a card's own profiler lists what it runs")]
replays = replayed.replays  # a fixture of all tests here

ROWS, COLUMNS = 48, 13
AS_ON_A_CARD = ("models/dcnv2.py", "models/layers/", "ops/pair_dots/", "train/losses.py")  # who asks where tensors are
FREE = ("empty", "new_empty", "empty_like", "empty_strided", "set_", "detach")  # they launch nothing, nor do views
READ = ("_local_scalar_dense",)  # by the host, which on a card reads memory of its own
PRODUCTS = ("mm", "addmm", "_addmm_activation")
COPIED = ["copy_", "copy_", "copy_"]  # ids, numbers and label, into the memory that a replay reads
GROUPING = ["pool_bags", "zeros", "count_occurrences", "list_rows", "place_occurrences", "clear_places"]
TOLD = ["copy_", "clone", "copy_"]  # faults of ids, outputs and loss
UPDATE = ["update_parameters", "update_single", "update_few", "sum_chunks", "update_many"]
NORM = ["tile_moments", "merge_moments", "normalise"]
LOSS = ["bce_sums", "bce_total", "bce_gradient"]


class Launches(TorchDispatchMode):
    """The names of what is launched while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if func.namespace == "aten" and not func.is_view and name not in (*FREE, *READ):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    from triton.runtime.interpreter import GridExecutor

    launches, run = Launches(), GridExecutor.__call__

    def launch(self: Any, *args: Any, **options: Any) -> None:
        launches.names.append(self.fn.__name__)
        with _disable_current_modes():  # how the interpreter does it is no matter
            run(self, *args, **options)

    with monkeypatch.context() as patch, launches:
        patch.setattr(GridExecutor, "__call__", launch)
        yield launches


@pytest.fixture(autouse=True)
def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers and loss take the way that they take on a card, dots of pairs that for matrix units."""

    def is_cuda(tensor: torch.Tensor) -> bool:
        asks = sys._getframe(1).f_code.co_filename
        return any(part in asks for part in AS_ON_A_CARD)

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(is_cuda))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")


def step_of(kind: type[Model], monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    """What a replayed step of a model over tables on a device launches, without the products of matrices."""
    draw, count = np.random.default_rng(0), 3 * ROWS
    columns: dict[str, Any] = {f"id{n}": draw.integers(0, 20, count) for n in range(3)}
    columns |= {f"n{n:02}": draw.normal(size=count).astype(np.float32) for n in range(COLUMNS)}
    columns["click"] = draw.integers(0, 2, count)
    data = hr.data.table(columns, batch_size=ROWS, label="click", threads=1)
    model = kind(data.schema, 16, tables={f"id{n}": {"rows": 20} for n in range(3)}, **options)
    put_tables(model)
    dense = torch.optim.Adagrad([part for part in model.parameters() if part.requires_grad], lr=0.1)
    rows = hr.optim.Adagrad(model, lr=0.1)
    learner = Learner(model, make_loss("bce"), dense, rows, device=DEVICE, graphs=StepGraphs())
    placed, names = [learner.place(batch) for batch in data], []
    for each in placed:
        with listed(monkeypatch) as launches:
            train_step(learner, [each])
        names = launches.names
    assert learner.graphs is not None
    assert learner.graphs.replays
    return [name for name in names if name not in PRODUCTS]


def test_a_step_of_dlrm_launches_these_and_no_others(monkeypatch):
    forth = [*NORM, *("new_zeros", "cat"), "constant_pad_nd", "dot_pairs", "constant_pad_nd"]  # numbers, two weights
    top = ["relu_backward", "clone", "sum", "clone"]  # a weight transposed, sums of columns, a gradient cut
    bottom = ["dot_pairs_backward", "relu_backward", "clone", "relu_backward", "sum", "clone"]
    assert step_of(DLRM, monkeypatch, bottom=(32,), top=(48,)) == [
        *(*COPIED, *GROUPING, *forth, *LOSS, *top, *bottom, *TOLD, *UPDATE)
    ]


def test_a_step_of_dcnv2_copies_neither_vectors_nor_their_gradient(monkeypatch):
    forth = [*NORM, *("copy_", "fill_"), *["constant_pad_nd"] * 3, "cross", "constant_pad_nd"]  # numbers beside vectors
    deep = ["relu_backward", "clone", "sum", "clone"]
    crosses = ["cross_backward", "sum", "clone", "clone", "cross_backward_x0", "clone", "clone"]  # weights alone
    options = {"crosses": 1, "rank": 16, "hidden": (32,), "structure": "stacked"}
    assert step_of(DCNv2, monkeypatch, **options) == [
        *(*COPIED, *GROUPING, *forth, *LOSS, *deep, *crosses, *TOLD, *UPDATE)
    ]


def test_experts_of_mmoe_read_one_matrix_that_nobody_copies(monkeypatch):
    names = step_of(MMoE, monkeypatch, experts=3, expert=(32,), tower=(16,))
    assert [names.count(name) for name in ("cat", "fill_")] == [1, 1]  # logits; zeros behind the numbers
    assert names.count("copy_") == len(COPIED) + 1 + TOLD.count("copy_")  # and the numbers
