"""The embedding benchmark answers its question on small tables; no time is asserted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

MODULES = (
    "embedding_cpu",
    "embedding_workload",
    "embedding_step",
    "embedding_jobs",
    "embedding_runs",
    "embedding_figures",
    "embedding_table",
    "perf_counters",
)


@pytest.fixture(scope="module")
def answer(ask: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The whole question in one setting, without peers that need an installation."""
    cache = tmp_path_factory.mktemp("embedding")
    return ask("embedding_cpu", "--quick", "--no-install", "--settings", "d128-hot10", "--cache", cache)


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_last_line_has_every_figure_of_this_machine(answer: dict[str, Any]) -> None:
    for key in ("vs_nn_embeddingbag_adagrad", "dynamic_vs_fixed", "virtual_scale"):
        assert answer[key]["geomean"] > 0
        assert list(answer[key]["settings"]) == ["d128-hot10"]
    assert {"ours", "nn", "copy_bytes_per_s"} <= answer["forward_vs_copy"].keys()
    assert answer["bytes_per_row_overhead"] > 0
    assert "1" in answer["threads"]["d128-hot10"]
    assert answer["roofline"]["d128-hot10"]["adagrad"]["multiple"] > 0
    assert {"machine", "versions", "date", "passes", "reps", "per_step"} <= answer.keys()


@pytest.mark.slow
def test_peers_that_are_not_installed_have_no_figure_but_a_reason(answer: dict[str, Any]) -> None:
    for key in ("vs_fbgemm_rowwise_adagrad", "vs_fbgemm_adagrad", "vs_torchrec_rowwise_adagrad"):
        assert key not in answer
        assert "--no-install" in answer["absent"][key]


@pytest.mark.slow
def test_every_contender_of_ours_is_checked_before_the_clock(answer: dict[str, Any]) -> None:
    checked = {name.split()[-1] for name, found in answer["correct"].items() if found["passed"]}
    assert {"ours_rowwise_adagrad", "ours_adagrad", "ours_dynamic", "ours_declared_1e14"} <= checked


@pytest.mark.slow
def test_hardware_counters_are_there_or_said_to_be_missing(answer: dict[str, Any]) -> None:
    assert ("counters" in answer) != ("counters" in answer["absent"])


@pytest.mark.slow
def test_tables_are_made_from_the_answer(
    modules: dict[str, ModuleType],
    answer: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(answer))
    monkeypatch.setattr(sys, "argv", ["embedding_table.py", str(source)])
    modules["embedding_table"].main()
    shown = capsys.readouterr().out
    assert "| `dynamic_vs_fixed` |" in shown
    assert "no `vs_fbgemm_adagrad`" in shown


@pytest.mark.slow
def test_the_chart_is_drawn_from_the_answer(answer: dict[str, Any], drawn: Callable[..., str]) -> None:
    assert "<svg" in drawn("embedding_plot", answer)


@pytest.mark.parametrize(
    ("option", "wrong", "hint"), [("--only", "fbgem", "fbgemm"), ("--settings", "16", "d128-hot10")]
)
def test_an_unknown_choice_is_refused_with_the_valid_ones(
    modules: dict[str, ModuleType], refusal: Callable[..., str], option: str, wrong: str, hint: str
) -> None:
    said = refusal(modules["embedding_cpu"], option, wrong).splitlines()[-1]
    assert f" {wrong}" in said.replace("'", " ")
    assert hint in said


# -- batches ---------------------------------------------------------------------------------------------------


def test_ids_follow_the_power_law(modules: dict[str, ModuleType]) -> None:
    ranks = modules["embedding_workload"].power_law(np.random.default_rng(0), 1_000, 1.05, 200_000)
    assert (ranks.min(), ranks.max()) == (0, 999)
    weights = np.arange(1, 1_001) ** -1.05
    share = np.bincount(ranks, minlength=1_000) / len(ranks)
    assert np.abs(share - weights / weights.sum()).max() < 0.003
    assert share[0] > 1.9 * share[1]


def test_popular_rows_lie_elsewhere_in_each_table(modules: dict[str, ModuleType]) -> None:
    workload = modules["embedding_workload"]
    batch = workload.make(workload.Shape(tables=6, rows=500, batch=2_000), 1)[0]
    popular = [np.bincount(ids).argmax() for ids in np.split(batch.values, batch.starts[1:-1])]
    assert len(set(popular)) > 3


def test_bags_are_of_one_id_or_ragged_around_the_mean(modules: dict[str, ModuleType]) -> None:
    workload = modules["embedding_workload"]
    shape = workload.Shape(tables=2, rows=50, batch=1_000)
    assert {batch.lengths.max() for batch in workload.make(shape, 1)} == {1}
    ragged = workload.make(shape, 10)[0].lengths
    assert (ragged.min(), ragged.max()) == (0, 20)
    assert abs(ragged.mean() - 10) < 0.5


def test_all_forms_of_a_batch_name_the_same_bags(modules: dict[str, ModuleType]) -> None:
    workload = modules["embedding_workload"]
    batch = workload.make(workload.Shape(tables=3, rows=50, batch=7), 2)[0]
    flat = np.split(batch.values, batch.flat_offsets[1:-1])
    for t in range(3):
        ids = batch.values[batch.starts[t] : batch.starts[t + 1]]
        own = np.split(ids, batch.offsets[t][1:-1])
        assert [bag.tolist() for bag in own] == [bag.tolist() for bag in flat[t * 7 : (t + 1) * 7]]
        assert [len(bag) for bag in own] == batch.lengths[t].tolist()


def test_batches_from_the_cache_are_the_ones_that_were_made(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    workload = modules["embedding_workload"]
    shape = workload.Shape(tables=2, rows=50, batch=9)
    first, again, made = workload.load(shape, 3, tmp_path), workload.load(shape, 3, tmp_path), workload.make(shape, 3)
    for a, b, c in zip(first, again, made, strict=True):
        assert np.array_equal(a.values, b.values)
        assert np.array_equal(a.values, c.values)
        assert np.array_equal(a.lengths, c.lengths)
    assert [path.name for path in tmp_path.iterdir()] == ["embedding-2x50-b9-hot3-a1.05-n4-s0-v1"]


def test_distinct_rows_are_counted_table_by_table(modules: dict[str, ModuleType]) -> None:
    batch = modules["embedding_workload"].Batch(np.array([5, 5, 7, 5]), np.array([[1, 1], [1, 1]]))
    assert batch.unique_rows() == 3


# -- figures ---------------------------------------------------------------------------------------------------


def measured(modules: dict[str, ModuleType], passes: dict[str, dict[str, list[dict[str, Any]]]]) -> Any:
    workload, figures = modules["embedding_workload"], modules["embedding_figures"]
    settings = [workload.Setting.parse(name) for name in passes]
    loads = {setting.hot: figures.Load(100.0, 40.0) for setting in settings}
    return figures.Measured(passes, settings, workload.Shape(tables=2, batch=8), loads, [1, 2], 2)


def times(*step_ms: float) -> list[dict[str, Any]]:
    return [{"step_ms": ms, "forward_ms": ms / 2} for ms in step_ms]


def test_the_geometric_mean_weighs_ratios_alike(modules: dict[str, ModuleType]) -> None:
    geomean = modules["embedding_figures"].geomean
    assert geomean([4.0, 0.25]) == pytest.approx(1.0)
    assert geomean([2.0, 2.0, 16.0]) == pytest.approx(4.0)


def test_a_ratio_is_the_best_pass_over_the_best_pass(modules: dict[str, ModuleType]) -> None:
    passes = {
        "d16-hot1": {"nn_adagrad": times(90, 80, 85), "ours_adagrad": times(50, 20, 21)},
        "d128-hot1": {"nn_adagrad": times(9, 9, 9), "ours_adagrad": times(9, 9, 9)},
    }
    found = modules["embedding_figures"].figures(measured(modules, passes))["vs_nn_embeddingbag_adagrad"]
    assert found["settings"] == {"d16-hot1": 4.0, "d128-hot1": 1.0}
    assert (found["geomean"], found["min"], found["max"]) == pytest.approx((2.0, 1.0, 4.0))
    assert found["geomean_of_medians"] == pytest.approx((85 / 21) ** 0.5)


def test_a_figure_with_a_setting_missing_is_not_reported(modules: dict[str, ModuleType]) -> None:
    passes = {
        "d16-hot1": {"nn_adagrad": times(2), "ours_adagrad": times(1)},
        "d128-hot1": {"ours_adagrad": times(1)},
    }
    assert modules["embedding_figures"].figures(measured(modules, passes)) == {}


def test_scale_is_the_throughput_of_many_parameters_over_that_of_few(modules: dict[str, ModuleType]) -> None:
    passes = {"d128-hot1": {"ours_declared_1e9": times(9), "ours_declared_1e14": times(10)}}
    found = modules["embedding_figures"].figures(measured(modules, passes))
    assert found["virtual_scale"]["geomean"] == pytest.approx(0.9)


def test_the_floor_counts_every_byte_of_an_exact_step_once(modules: dict[str, ModuleType]) -> None:
    workload, figures = modules["embedding_workload"], modules["embedding_figures"]
    setting, shape, load = workload.Setting(16, 10), workload.Shape(tables=2, batch=8), figures.Load(100.0, 40.0)
    ids, rows, output = 100 * 8, 40 * 16 * 4, 8 * 2 * 16 * 4
    assert figures.step_bytes(setting, shape, load, 1) == ids + 3 * rows + 2 * output + 2 * 40 * 4
    assert figures.step_bytes(setting, shape, load, 16) == ids + 5 * rows + 2 * output


def test_the_floor_takes_a_copy_as_two_bytes_moved(modules: dict[str, ModuleType]) -> None:
    copy = [{"bytes_per_s": 1e9}, {"bytes_per_s": 2e9}]
    passes = {"d16-hot1": {"ours_rowwise_adagrad": times(3), "ours_adagrad": times(4), "copy": copy}}
    found = modules["embedding_figures"].figures(measured(modules, passes))["roofline"]["d16-hot1"]["adagrad"]
    assert found["floor_ms"] == pytest.approx(found["bytes"] / 4e9 * 1e3)
    assert found["multiple"] == pytest.approx(4 / found["floor_ms"])


def test_the_forward_is_judged_by_the_bytes_of_all_ids(modules: dict[str, ModuleType]) -> None:
    copy = [{"bytes_per_s": 1e9}]
    passes = {"d128-hot10": {"ours_rowwise_adagrad": times(2), "nn_adagrad": times(4), "copy": copy}}
    found = modules["embedding_figures"].figures(measured(modules, passes))["forward_vs_copy"]
    assert found["ours"] == pytest.approx(100 * 512 / 1e-3 / 1e9)
    assert found["nn"] == pytest.approx(found["ours"] / 2)
    assert "fbgemm" not in found


# -- runs ------------------------------------------------------------------------------------------------------


def planned(modules: dict[str, ModuleType], parts: list[str], settings: Sequence[str] = ("d16-hot1",)) -> list[Any]:
    workload, step, jobs = (modules[f"embedding_{name}"] for name in ("workload", "step", "jobs"))
    chosen = [workload.Setting.parse(name) for name in settings]
    return jobs.jobs(parts, step.Task("", chosen[0], workload.Shape(), ""), chosen, [1, 2, 4])


def test_a_task_survives_its_way_to_another_process(modules: dict[str, ModuleType]) -> None:
    task = planned(modules, ["dynamic"])[-1].task
    assert task.capacity == 200_000
    assert modules["embedding_step"].Task.from_json(task.to_json()) == task


def test_only_the_jobs_that_a_part_needs_are_run(modules: dict[str, ModuleType]) -> None:
    assert [job.name for job in planned(modules, ["nn"])] == ["ours_adagrad", "nn_adagrad"]
    names = [job.name for job in planned(modules, ["threads"])]
    assert names == ["ours_rowwise_adagrad", "ours_threads_1", "ours_threads_4"]
    assert planned(modules, ["virtual"]) == []
    capacities = [job.task.capacity for job in planned(modules, ["virtual"], ["d128-hot1"])]
    assert capacities == [10**9 // 26 // 128, 10**14 // 26 // 128]


def test_thread_counts_double_up_to_all_cores(modules: dict[str, ModuleType]) -> None:
    counts = modules["embedding_jobs"].thread_counts
    assert [counts(1), counts(2), counts(6), counts(16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


def test_every_other_pass_goes_backwards_and_a_failed_job_is_not_tried_again(modules: dict[str, ModuleType]) -> None:
    runs = modules["embedding_runs"]
    order: list[str] = []

    def run(job: Any) -> dict[str, Any]:
        order.append(job.name)
        if job.name == "nn_adagrad":
            raise runs.Absent("it broke")
        return times(len(order))[0]

    passes, failed = runs.take_turns(planned(modules, ["nn", "torchrec"]), 3, run)
    first = ["ours_rowwise_adagrad", "torchrec_rowwise_adagrad", "ours_adagrad"]
    assert order == [*first, "nn_adagrad", *reversed(first), *first]
    assert len(passes["d16-hot1"]["ours_adagrad"]) == 3
    assert failed == {"d16-hot1 nn_adagrad": "it broke"}
    assert modules["embedding_figures"].reasons(failed) == {
        "vs_nn_embeddingbag_adagrad": "d16-hot1 nn_adagrad: it broke"
    }


def test_only_peers_get_the_steady_heap(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    ours, peer = planned(modules, ["nn"])
    environment = modules["embedding_runs"].environment
    assert "MALLOC_MMAP_MAX_" not in environment(ours)
    assert environment(peer)["MALLOC_MMAP_MAX_"] == "0"


def test_counters_of_two_runs_give_those_of_a_step(modules: dict[str, ModuleType]) -> None:
    counters = modules["perf_counters"]

    def run(reps: int, prefix: Sequence[str]) -> None:
        text = f"\n{1000 + 50 * reps},,instructions:u,1,100.00,,\n{10 + 2 * reps},,cache-misses:u,1,100.00,,\n"
        Path(prefix[prefix.index("-o") + 1]).write_text(text)

    assert counters.per_step(run, 9) == {"instructions": 50, "cache-misses": 2}
    assert counters.parse("<not supported>,,instructions,0,100.00,,\n5,,cache-misses,1,100.00,,\n") is None
    assert counters.parse("") is None


def test_tables_go_between_the_marks_of_a_page(modules: dict[str, ModuleType]) -> None:
    table = modules["embedding_table"]
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    assert table.put(page, "new") == f"before\n{table.BEGIN}\nnew\n{table.END}\nafter\n"
    with pytest.raises(ValueError, match="once each"):
        table.put("a page without marks", "new")
