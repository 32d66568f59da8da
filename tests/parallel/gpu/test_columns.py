"""Rows whose columns lie on the GPUs of several ranks: what a step asks of whole rows is that of one process."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel.drawn import OPTIMIZERS
from tests.parallel.equality import CLOSE, check, compare_stores
from tests.parallel.gpu import small
from tests.parallel.jobs import columns
from tests.parallel.pool import pool

pytestmark = needs_gpu

TRAIN = "tests.parallel.jobs.columns:train"
WHOLE = {"lr": 0.2, "eps": 1e-3, "weight_decay": 0.1, "clip_row_norm": 0.02}


def test_a_row_that_is_not_finite_in_one_column_stays_as_it_is_on_all_ranks() -> None:
    compare_rows("RowWiseAdagrad", WHOLE, nan)


def test_other_tables_of_a_step_are_updated_beside_those_that_are_seen_whole() -> None:
    check(small.case(2, "mixed", optimizer="RowWiseAdagrad", options=WHOLE, sizes=[[[2, 3]]]))


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"lookups": 2}, {"learned": True}, {"clip": 0.05, "ahead": True}], ids=str)
def test_clipping_decay_and_the_state_of_a_row_go_together(more: dict[str, Any]) -> None:
    check(small.case(2, "column", optimizer="RowWiseAdagrad", options=WHOLE, **more))


@pytest.mark.slow
@pytest.mark.parametrize("bad", [nan, -inf, 3e38])  # the last one is too large once ranks have added it up
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_leaves_out_whole_rows(kind: str, bad: float) -> None:
    compare_rows(*OPTIMIZERS[kind], bad)


@pytest.mark.slow
def test_a_gradient_too_large_for_its_type_on_the_wire_leaves_out_the_whole_row() -> None:
    compare_rows("SGD", {"lr": 0.1}, 1e6, wire="float16", close=1e-2, alone=nan)


def compare_rows(
    optimizer: str, options: dict[str, Any], bad: float, wire: str = "float32", close: float = CLOSE, alone: float = 0.0
) -> None:
    """Steps of two ranks and of one process, in which two rows get a bad gradient in a column of the second rank."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(columns.ROWS, (3, 2, 4, 2), generator=draw)
    grads = torch.randn(3, 2, 4, sum(columns.COLUMNS), generator=draw)
    ids[1, :, :2], grads[1, :, :2, 4] = torch.tensor([5, 6]), bad
    given = {"optimizer": optimizer, "options": options, "ids": ids}
    found = pool(2).run(TRAIN, **given, grads=grads, on_device=True, wire=wire)
    grads[1, :, :2, 4] = alone or bad
    wanted = columns.train_alone(**given, grads=grads)
    assert wanted["nan_rows"] == sum(each["nan_rows"] for each in found) == 2
    compare_stores([each["final"] for each in found], wanted["final"], close, "rows")


@pytest.mark.slow
def test_a_message_more_is_sent_only_where_rows_must_be_seen_whole() -> None:
    ids, grads = torch.tensor([[[[1, 2]], [[1, 3]]]] * 4), torch.ones(4, 2, 1, sum(columns.COLUMNS))
    usual = {"sizes": 4, "ids": 4, "vectors": 4, "gradients": 4}
    for options, sums in (({"lr": 0.1}, {}), ({"lr": 0.1, "clip_row_norm": 1.0}, {"sums": 4})):
        for each in pool(2).run(TRAIN, optimizer="SGD", options=options, ids=ids, grads=grads, on_device=True):
            assert each["sent"] == usual | sums
    grads[2, 1, 0, 0] = nan
    for each in pool(2).run(TRAIN, optimizer="SGD", options={"lr": 0.1}, ids=ids, grads=grads, on_device=True):
        assert each["sent"] == usual | {"sums": 1}
