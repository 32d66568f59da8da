"""The GPU benchmark of training answers on few rows without a GPU; no time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridrec.train.stages import STAGES

MODULES = ("train_gpu", "train_gpu_run", "train_workload")


@pytest.mark.slow
def test_dlrm_is_trained_from_files_in_both_precisions(ask: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    answer = ask("train_gpu", "--smoke", "--data", tmp_path)
    assert set(answer["samples_per_s"]) == {"tf32", "bf16"}
    for part in answer["parts"].values():
        assert part["alone_step_ms"] > 0
        assert part["wall_ms"] > 0
        assert set(part["stages_ms"]) == set(STAGES)
        assert max(part["longest_waits_ms"]) == part["longest_waits_ms"][0] >= part["stages_ms"]["data"]
    assert "gpu_busy" not in answer  # there is no GPU
    assert answer["failed"] == {}


@pytest.mark.slow
def test_steps_on_the_tables_of_criteo_stand_beside_published_figures(ask: Callable[..., dict[str, Any]]) -> None:
    found = ask("train_gpu", "--smoke", "--criteo1tb")["criteo1tb"]
    assert set(found) == {"dlrm", "dcnv2"}
    for part in found.values():
        rate, published = part["tf32"]["samples_per_s"], part["published_a100"]["tf32"]
        assert part["vs_published_a100"]["tf32"] == pytest.approx(rate / published)


def test_the_tables_of_criteo_are_26_of_at_most_40_million_rows(modules: dict[str, ModuleType]) -> None:
    rows = modules["train_gpu"].CRITEO_1TB
    assert (len(rows), max(rows), sum(rows)) == (26, 40_000_000, 204_184_588)


def test_what_a_step_spent_is_told_though_stages_begin_anew(modules: dict[str, ModuleType]) -> None:
    spent = modules["train_gpu_run"].Spent()
    for data, step in ((1.0, 1.0), (3.0, 2.0), (0.5, 0.25)):  # a record came before the last
        spent.look({"data": data, "step": step})
    told = spent.told()
    assert told["stages_ms"] == {"data": pytest.approx(3500 / 3), "step": 750.0}
    assert told["longest_waits_ms"] == [2000.0, 1000.0, 500.0]
    spent.clear()
    spent.look({"data": 0.75, "step": 0.25})
    assert spent.told() == {"stages_ms": {"data": 250.0, "step": 0.0}, "longest_waits_ms": [250.0]}


def test_several_files_hold_the_rows_of_one(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    workload = modules["train_workload"]
    rows = 2 * workload.GROUP_ROWS + 5
    paths = workload.write_files(rows, 20, tmp_path, 2)
    assert len(paths) == 2
    parts = pa.concat_tables([pq.read_table(path, columns=["id3", "click"]) for path in paths])
    assert parts.equals(pq.read_table(workload.write(rows, 20, tmp_path), columns=["id3", "click"]))
