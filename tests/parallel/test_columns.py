"""Rows whose columns lie on several ranks: what a step asks of whole rows is that of one process."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

from tests.parallel import standard
from tests.parallel.drawn import OPTIMIZERS
from tests.parallel.equality import CLOSE, check, compare_stores
from tests.parallel.jobs import columns
from tests.parallel.pool import pool

TRAIN = "tests.parallel.jobs.columns:train"
QUICK = ("sgd", "rowwise_adagrad", "adam")
EVERY_KIND = [
    pytest.param(*each, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, each in OPTIMIZERS.items()
]
WHOLE = {"lr": 0.2, "eps": 1e-3, "weight_decay": 0.1, "clip_row_norm": 0.02}


@pytest.mark.parametrize("more", [{"lookups": 2}, {"learned": True}, {"clip": 0.05, "wire": None, "ahead": True}])
def test_clipping_decay_and_the_state_of_a_row_go_together(more: dict[str, Any]) -> None:
    check(standard.case(3, "column", optimizer="RowWiseAdagrad", options=WHOLE, **more))


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_of_ranks_change_nothing(threads: int) -> None:
    check(standard.case(2, "column", optimizer="RowWiseAdagrad", options=WHOLE, threads=threads))


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bad", [nan, -inf, 3e38])  # the last one is too large once ranks have added it up
@pytest.mark.parametrize(("optimizer", "options"), EVERY_KIND)
def test_a_row_that_is_not_finite_in_one_column_stays_as_it_is_on_all_ranks(
    optimizer: str, options: dict[str, Any], bad: float, world: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(columns.ROWS, (3, world, 4, 2), generator=draw)
    grads = torch.randn(3, world, 4, sum(columns.COLUMNS), generator=draw)
    ids[1, :, :2], grads[1, :, :2, 4] = torch.tensor([5, 6]), bad  # a column of the second rank
    given = {"optimizer": optimizer, "options": options, "ids": ids, "grads": grads}
    found, alone = pool(world).run(TRAIN, **given), columns.train_alone(**given)
    assert alone["nan_rows"] == sum(each["nan_rows"] for each in found) == 2
    compare_stores([each["final"] for each in found], alone["final"], CLOSE, "rows")


def test_a_message_more_is_sent_only_where_rows_must_be_seen_whole() -> None:
    ids, grads = torch.tensor([[[[1, 2]], [[1, 3]]]] * 4), torch.ones(4, 2, 1, sum(columns.COLUMNS))
    usual = {"sizes": 4, "ids": 4, "vectors": 4, "gradients": 4}
    for options, sums in (({"lr": 0.1}, {}), ({"lr": 0.1, "clip_row_norm": 1.0}, {"sums": 4})):
        for each in pool(2).run(TRAIN, optimizer="SGD", options=options, ids=ids, grads=grads):
            assert each["sent"] == usual | sums
    grads[2, 1, 0, 0] = nan
    for each in pool(2).run(TRAIN, optimizer="SGD", options={"lr": 0.1}, ids=ids, grads=grads):
        assert each["sent"] == usual | {"sums": 1}


@pytest.mark.parametrize("tables", [1, 12])
def test_whole_rows_of_all_tables_are_seen_by_one_message(tables: int) -> None:
    for found in pool(2).run(
        "tests.parallel.jobs.sharding:traffic", scheme="column", tables=tables, ids=[1, 2, 2], clip_row_norm=1.0
    ):
        assert found["calls"]["sums"] == 1
        assert found["bytes"]["sums"] == tables * 2 * 8, "a number for each distinct row"
