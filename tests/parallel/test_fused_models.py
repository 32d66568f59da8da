"""Models with nn.Embedding and nn.EmbeddingBag inside, through hr.fuse and hr.shard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.training_case import Case, Spec

TABLES: list[Spec] = [
    {"name": "user", "dim": 4, "rows": 11, "combiner": "none"},
    {"name": "item", "dim": 8, "rows": 9, "features": ["item", "liked"], "combiner": "none"},
    {"name": "tags", "dim": 6, "rows": 12, "combiner": "sum"},
    {"name": "words", "dim": 5, "rows": 3, "combiner": "mean"},
    {"name": "best", "dim": 3, "rows": 7, "combiner": "max"},
]


def fused(world: int, scheme: str | None, tables: list[Spec] = TABLES, **more: Any) -> Case:
    """A model of torch modules, its tables named by their paths."""
    placements = None
    if scheme is not None:
        placements = [standard.placed(spec, scheme, world, n) for n, spec in enumerate(tables)]
        placements = [each | {"table": f"tables.{each['table']}"} for each in placements]
    given = {"hot": {"user": 1, "item": 3, "liked": 2}, "sizes": standard.sizes(world), **more}
    return Case(tables=tables, placements=placements, fused=True, **given)


@pytest.mark.parametrize("scheme", [*standard.ANY, None])
def test_a_fused_model_on_two_ranks_ends_where_one_process_does(scheme: str | None) -> None:
    check(fused(2, scheme, optimizer="Adagrad", options={"lr": 0.2, "eps": 1e-3}))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_weights_of_bags_take_their_gradients(scheme: str) -> None:
    check(fused(2, scheme, learned=True))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_the_row_of_padding_stays_as_it_is(scheme: str) -> None:
    tables = [spec | {"padding_idx": 2} for spec in TABLES if spec["combiner"] != "max"]
    found = check(fused(2, scheme, tables))
    for each in found:
        for name, before in each["initial"].items():
            here = before["ids"] == 2
            assert bool((before["rows"][here] == each["final"][name]["rows"][here]).all())


@pytest.mark.parametrize("scheme", standard.ANY)
def test_ids_without_a_batch_dimension_train_alike_where_ranks_say_their_rows(scheme: str) -> None:
    check(fused(2, scheme, hot={}, weighs=True))


def test_three_ranks_train_a_fused_model_alike() -> None:
    check(fused(3, "row", clip=0.05))


def test_rows_of_torchs_own_modules_are_seen_whole_where_columns_lie_apart() -> None:
    tables = [spec | {"padding_idx": 1} for spec in TABLES]
    options = {"lr": 0.2, "eps": 1e-3, "weight_decay": 0.1, "clip_row_norm": 0.02}
    check(fused(2, "column", tables, optimizer="RowWiseAdagrad", options=options))
