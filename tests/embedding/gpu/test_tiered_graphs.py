"""Steps with tables in two tiers as CUDA graphs: to the last bit those of tables which are all on the device."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding.gpu.tier_class import TierClass
from hybridrec.train import graphs
from hybridrec.train.evaluation import evaluate
from hybridrec.train.step import train_step
from hybridrec.types import Batch
from tests.embedding.gpu.replayed import Run, drawn, replays, scored  # noqa: F401 (replays is a fixture)
from tests.embedding.gpu.test_tiered_training import TABLES, block, few, store
from tests.gpu import INTERPRETED, needs_gpu
from tests.ops.row_cache.caches import sound

pytestmark = needs_gpu

STEPS, ROWS = (4, 2) if INTERPRETED else (24, 4)  # of rows a power of two: gradients are exact
WIDTH = sum(TABLES[at].dim for at in (0, 0, 1, 2, 3))  # a, a_list, b, c and d


def run_of(tiered: bool, path: Path | None = None) -> Run:
    tables = TABLES if path is None else [replace(table, cache=0.5, path=path) for table in TABLES]
    return Run(tables, partial(store, tiered=tiered))


def batch_of(seed: int) -> Batch:
    torch.manual_seed(seed)
    return drawn(block(ROWS), WIDTH)


def agree(one: Run, other: Run) -> None:
    for name, expected in one.group.stores.items():
        found, wanted = other.group.stores[name].snapshot().data, expected.snapshot().data
        assert torch.equal(found.rows, wanted.rows), name
        assert all(torch.equal(values, wanted.state[column]) for column, values in found.state.items()), name
    for tier in other.group.tiers:
        sound(tier.cache)


def test_replayed_steps_are_those_of_tables_on_the_device_bit_for_bit() -> None:
    hot, tiered = run_of(tiered=False), run_of(tiered=True)
    batches = [batch_of(seed) for seed in range(STEPS)]
    moved = [tier.cache.figures().moved for tier in tiered.group.tiers]
    assert tiered.train(batches[:-1]) == hot.train(batches[:-1])
    assert torch.equal(tiered.evaluate(batch_of(100)), hot.evaluate(batch_of(100)))  # without a graph, between replays
    assert tiered.train(batches[-1:]) == hot.train(batches[-1:])
    agree(hot, tiered)
    for run in (hot, tiered):
        assert run.graphs.refused is None
        assert run.graphs.replays == STEPS - graphs.SEEN
    assert all(tier.cache.figures().moved > before for tier, before in zip(tiered.group.tiers, moved, strict=True))
    assert all(tier.cache.figures().refused == 0 for tier in tiered.group.tiers)
    assert all(len(tier._flights) == 0 for tier in tiered.group.tiers)


def test_replayed_steps_find_rows_that_were_in_files(tmp_path: Path) -> None:
    hot, tiered = run_of(tiered=False), run_of(tiered=True, path=tmp_path)
    batches = [batch_of(seed) for seed in range(graphs.SEEN + 2)]
    assert tiered.train(batches) == hot.train(batches)
    agree(hot, tiered)
    assert tiered.graphs.replays == 2
    assert all(tier.brought and tier.figures().moved for tier in tiered.group.tiers)


def test_the_next_block_is_admitted_with_a_replay_and_no_third_one_is_out() -> None:
    tiered = run_of(tiered=True)
    tiered.train([batch_of(seed) for seed in range(graphs.SEEN + 1)])  # the last is a replay
    first, second, third = (tiered.learner.place(batch_of(seed)) for seed in (10, 11, 12))
    tier, rows, out = tiered.group.tiers[0], cast(Any, tiered.learner.rows), []
    before, step = tier.cache.figures().admissions, rows.step
    rows.step = lambda: (out.append(in_flight(tier)), step())[1]
    for number, placed in enumerate((first, second, third), 1):
        train_step(tiered.learner, [placed])
        assert tier.figures().admissions == before + min(number + 1, 3)
        assert len(tier._flights) == (number < 3)
    assert out == [2, 2, 1]  # rows stay until their update
    assert tiered.graphs.replays == 4


def in_flight(tier: TierClass) -> int:
    return sum(flight() is not None for flight, _ in tier._flights)


def test_a_replay_that_needs_more_rows_than_there_is_room_for_is_told_and_none_is_lost() -> None:
    hot, tiered = run_of(tiered=False), run_of(tiered=True)
    one, many = few(a_list=[[3]]), few(a_list=[list(range(35))])  # and a row of d
    for run in (hot, tiered):
        run.train([scored(one, WIDTH) for _ in range(graphs.SEEN + 1)])
    coming = [scored(many, WIDTH), *(scored(one, WIDTH, 0.0) for _ in range(3))]
    with pytest.raises(ValueError, match=r"tables 'a', 'd' together have 34 rows on .* needed 2 more"):
        tiered.train(coming)  # nobody waits for the device to know: on a card it is told in one of the next steps
    for name in "ad":
        assert torch.equal(tiered.group.stores[name].snapshot().data.rows, hot.group.stores[name].snapshot().data.rows)


@pytest.mark.parametrize("trains", [True, False], ids=["a step", "an evaluation"])
def test_the_last_batch_of_a_run_is_told_if_it_needs_more_rows_than_there_is_room_for(trains: bool) -> None:
    tiered = run_of(tiered=True)
    tiered.learner.graphs = None
    many = scored(few(a_list=[list(range(35))]), WIDTH)
    with pytest.raises(ValueError, match=r"tables 'a', 'd' together have 34 rows on .* needed 2 more"):
        tiered.train([many]) if trains else evaluate(tiered.learner, [many], None)
    tiered.learner.settle()  # it is told once


def test_a_replay_names_ids_outside_a_table() -> None:
    tiered = run_of(tiered=True)
    tiered.train([scored(few(d=[3, 4]), WIDTH) for _ in range(graphs.SEEN + 1)])
    with pytest.raises(ValueError, match="id 25 of feature 'd' is outside table 'd', 0 … 19"):
        tiered.train([scored(few(d=[3, 25]), WIDTH)])


def test_ids_that_a_model_makes_itself_are_no_part_of_a_graph() -> None:
    tiered = run_of(tiered=True)
    own = tiered.model.embeddings.forward
    tiered.model.embeddings.forward = lambda batch: own(batch.ids.map_tensors(torch.clone))
    tiered.train([scored(few(d=[3, 4]), WIDTH) for _ in range(graphs.SEEN + 2)])
    assert "only where its ids are those of the batch as it comes" in (tiered.graphs.refused or "")
