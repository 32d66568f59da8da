"""The training benchmark answers its questions on few rows; no time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

MODULES = ("train_cpu", "train_workload", "train_runs", "train_figures", "train_check", "train_ours", "train_save")


@pytest.fixture(scope="module")
def answer(ask: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All questions with a goal, on few rows; the other peers run in the check alone."""
    cache = tmp_path_factory.mktemp("train")
    return ask("train_cpu", "--quick", "--only", "plain,wait,overhead,save", "--cache", cache)


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_last_line_has_every_figure(answer: dict[str, Any]) -> None:
    ratios = ("vs_plain_pytorch", "save_stall_steps", "restore_vs_disk")
    assert all(answer[key] > 0 for key in ratios)
    assert 0 < answer["loader_wait"] < 1
    times = answer["parts"]["overhead"]
    added = times["ours_1_ms"] - times["torch_1_ms"] + times["handover_ms"]  # below 0 where the machine is busy
    assert answer["step_overhead"] == pytest.approx(added / times["full_ms"])
    assert set(answer["by_store"]["slowdown_while_saving"]) == {"fixed", "dynamic"}
    assert "vs_rowwise_dataloader" not in answer  # was not asked for
    assert {"machine", "versions", "date", "passes", "rows", "batch", "threads"} <= answer.keys()
    assert answer["failed"] == {}


@pytest.mark.slow
def test_ours_and_all_peers_lose_the_same_before_the_clock(answer: dict[str, Any]) -> None:
    assert answer["correct"]["passed"]
    assert set(answer["correct"]["apart"]) == {"plain_bags", "plain_big", "rowwise"}
    losses = answer["correct"]["losses"]["ours"]
    assert len(losses) == 5
    assert len(set(losses)) == 5  # each step changed something


@pytest.mark.slow
def test_every_contender_sees_every_row_and_learns_alike(answer: dict[str, Any]) -> None:
    parts = answer["parts"]
    assert {parts[kind]["rows"] for kind in ("ours", "plain_bags", "plain_bags_inline")} == {answer["rows"]}
    assert parts["ours"]["loss"] == pytest.approx(parts["plain_bags"]["loss"], abs=0.05)


@pytest.mark.slow
def test_the_chart_is_drawn_from_the_answer(answer: dict[str, Any], drawn: Callable[..., str]) -> None:
    assert "<svg" in drawn("train_plot", answer)


def test_an_unknown_part_is_refused_with_the_valid_names(
    modules: dict[str, ModuleType], refusal: Callable[..., str]
) -> None:
    assert "unknown part plane: choose from plain," in refusal(modules["train_cpu"], "--only", "plane")


# -- its parts -------------------------------------------------------------------------------------------------


def test_the_file_is_as_the_question_states(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    table = pq.read_table(modules["train_workload"].write(3_000, 50, tmp_path))
    kinds = [str(field.type) for field in table.schema]
    assert (kinds.count("int64"), kinds.count("float"), kinds.count("int8"), len(kinds)) == (26, 13, 1, 40)
    for name in modules["train_workload"].ID_NAMES:
        ids = table[name].to_numpy()
        assert ids.min() >= 0
        assert ids.max() < 50
    assert 0.1 < table["click"].to_numpy().mean() < 0.5


def test_a_shorter_file_is_the_beginning_of_a_longer_one(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    write, rows = modules["train_workload"].write, modules["train_workload"].GROUP_ROWS
    short, long = (pq.read_table(write(n, 20, tmp_path), columns=["id3", "click"]) for n in (rows, rows + 5))
    assert long.slice(0, rows).equals(short)


def test_copied_weights_give_the_same_outputs(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    ours_of, check = modules["train_ours"], modules["train_check"]
    path = modules["train_workload"].write(64, 30, tmp_path)
    task = modules["train_workload"].Task("check", str(path), 64, 30, 1, str(tmp_path))
    ours, theirs = ours_of.model_of(ours_of.dataset(task).schema, 30), check.plain.DeepFM(30)
    check.copy_weights(ours, theirs, 30)
    (batch,), (rows,) = ours_of.ready_batches(task, 9), list(check.plain.read(str(path), 64))
    torch.testing.assert_close(theirs(*rows[:2]), ours(batch), atol=1e-5, rtol=1e-5)


def test_the_row_wise_peer_and_the_check_read_the_shorter_file(modules: dict[str, ModuleType]) -> None:
    plan = modules["train_runs"].Plan(modules["train_workload"].Task("", "long", 8, 10, 1, "."), Path("short"))
    assert [plan.task(kind).path for kind in ("ours", "rowwise", "check")] == ["long", "short", "short"]


def test_peers_have_a_steady_heap_and_ours_has_not(modules: dict[str, ModuleType]) -> None:
    runs = modules["train_runs"]
    task = modules["train_workload"].Task("plain_bags", "", 8, 10, 3, ".")
    of_ours = modules["train_workload"].Task("ours", "", 8, 10, 3, ".")
    assert runs.environment(task)["MALLOC_MMAP_MAX_"] == "0"
    assert "MALLOC_MMAP_MAX_" not in runs.environment(of_ours)
    assert runs.environment(of_ours)["OMP_NUM_THREADS"] == "3"


def test_the_better_loader_of_a_peer_counts(modules: dict[str, ModuleType]) -> None:
    of = modules["train_figures"].figures
    passes = {
        "ours": [{"rows_per_s": 900.0, "loader_wait": 0.5}, {"rows_per_s": 1000.0, "loader_wait": 0.01}],
        "plain_bags": [{"rows_per_s": 100.0}, {"rows_per_s": 300.0}],
        "plain_bags_inline": [{"rows_per_s": 250.0}, {"rows_per_s": 400.0}],
    }
    found = of(passes)
    assert found["vs_plain_pytorch"] == 2.5
    assert found["by_median"]["vs_plain_pytorch"] == pytest.approx(950 / 325)
    assert found["loader_wait"] == 0.01  # that of the best pass
    assert "step_overhead" not in found


def test_the_worse_store_counts(modules: dict[str, ModuleType]) -> None:
    answers = [{"save_stall_steps": 0.5, "restore_vs_disk": 0.9, "slowdown": 1.2}]
    worse = [{"save_stall_steps": 0.7, "restore_vs_disk": 0.6, "slowdown": 1.1}]
    found = modules["train_figures"].figures({"save_fixed": answers, "save_dynamic": worse})
    assert (found["save_stall_steps"], found["restore_vs_disk"]) == (0.7, 0.6)
    assert found["by_store"]["restore_vs_disk"] == {"fixed": 0.9, "dynamic": 0.6}


def test_overhead_is_what_the_framework_adds_to_one_row(modules: dict[str, ModuleType]) -> None:
    first = {"ours_1_ms": 2.0, "torch_1_ms": 1.0, "handover_ms": 0.25, "full_ms": 30.0}
    second = {"ours_1_ms": 2.5, "torch_1_ms": 1.2, "handover_ms": 0.5, "full_ms": 25.0}
    assert modules["train_figures"].overhead([first, second]) == pytest.approx(1.25 / 25)


def test_stages_are_weighed_by_the_steps_of_their_record(modules: dict[str, ModuleType]) -> None:
    records = [
        {"kind": "train", "step": 100, "stages": {"data": 0.1, "forward": 1.0}},
        {"kind": "valid", "step": 100},
        {"kind": "train", "step": 120, "stages": {"data": 0.5, "forward": 1.0}},
    ]
    assert modules["train_ours"].stages_of(records) == {"data": 20.0, "forward": 120.0}
