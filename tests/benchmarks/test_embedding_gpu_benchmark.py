"""The GPU benchmark of embeddings answers on small tables without a GPU; no time is asserted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

MODULES = ("gpu_models", "gpu_process", "gpu_profile", "embedding_gpu", "embedding_gpu_figures", "embedding_gpu_check")


@pytest.fixture(scope="module")
def answer(ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return ask("embedding_gpu", "tiny", "medium", "--smoke", "--passes", "1")


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_model_has_an_object_with_its_times_and_shares(answer: dict[str, Any]) -> None:
    for name in ("tiny", "medium"):
        assert set(answer[name]["ms"]["ours"]) == {"fwd", "fwd_bwd", "step", "step_eager"}
        assert set(answer[name]["floor_share"]) == {"fwd", "fwd_bwd", "step", "step_eager"}
        assert answer[name]["batches"] == {"ours": 2}
        assert answer[name]["failures"] == {}
    assert answer["medium"]["medium_ms"] == answer["medium"]["ms"]["ours"]["step"]
    assert {"machine", "versions", "date", "passes", "batch", "steps"} <= answer.keys()


@pytest.mark.slow
def test_without_the_peer_there_is_a_reason_and_no_ratio(answer: dict[str, Any]) -> None:
    assert "not asked for" in answer["absent"]["fbgemm"]
    assert not [key for name in ("tiny", "medium") for key in answer[name] if "vs_fbgemm" in key]


@pytest.mark.slow
def test_answers_are_checked_before_the_clock(answer: dict[str, Any]) -> None:
    assert {name: found["passed"] for name, found in answer["correct"].items()} == {"tiny": True, "medium": True}


@pytest.mark.slow
def test_the_chart_is_drawn_from_the_answer(answer: dict[str, Any], drawn: Callable[..., str]) -> None:
    assert "<svg" in drawn("embedding_gpu_plot", answer)


def test_an_unknown_model_is_refused_with_the_valid_ones(
    modules: dict[str, ModuleType], refusal: Callable[..., str]
) -> None:
    said = refusal(modules["embedding_gpu"], "tinny")
    assert "unknown model tinny: choose from " in said
    assert "criteo" in said.splitlines()[-1]


def test_the_peer_times_what_it_can_and_says_what_it_cannot(modules: dict[str, ModuleType], fbgemm_stub: Path) -> None:
    process, base = modules["gpu_process"], modules["embedding_gpu"].SMOKE
    found = process.run("peers/fbgemm_tbe_gpu.py", replace(base, model="medium", skip=["fwd eager"]).to_json())
    assert "crash" not in found, found
    assert set(found["ms"]) == {"fwd_bwd", "step_eager", "step"}  # the forward was to be skipped
    assert {"compiled", "compiled, reduce-overhead"} <= set(found["ms"]["step"])
    assert {"fwd graph", "fwd_bwd graph", "step compiled, one graph"} <= set(found["failures"])  # no GPU here
    models = modules["gpu_models"]
    drawn = [models.sample(models.shape_of("medium", base.most_rows), base.batch, number, "cpu") for number in range(2)]
    assert found["ids_sum"] == sum(int(each.ids.sum()) for each in drawn)  # as ours draws them


# -- models and batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tables", "features", "ids", "width", "numbers"),
    [
        ("tiny", 55, 58, 85, 672, 1_123_681_280),
        ("small", 107, 116, 377, 2_512, 7_058_084_800),
        ("medium", 311, 337, 1_611, 17_280, 55_349_145_600),
        ("criteo", 26, 26, 26, 3_328, 3_328_000_000),
    ],
)
def test_the_models_have_the_published_sizes(
    modules: dict[str, ModuleType], name: str, tables: int, features: int, ids: int, width: int, numbers: int
) -> None:
    shape = modules["gpu_models"].SHAPES[name]
    assert (len(shape.tables), len(shape.features), shape.ids, shape.width) == (tables, features, ids, width)
    assert sum(rows * dim for rows, dim in shape.tables) == numbers


def test_a_batch_is_the_same_for_whoever_draws_it(modules: dict[str, ModuleType]) -> None:
    models = modules["gpu_models"]
    shape = models.shape_of("tiny", 100)
    first, again, other = (models.sample(shape, 32, number, "cpu") for number in (3, 3, 4))
    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, other.ids)
    assert len(first.ids) == 32 * shape.ids


def test_ids_follow_the_power_law(modules: dict[str, ModuleType]) -> None:
    ids = modules["gpu_models"].power_law(200_000, 1_000, torch.Generator().manual_seed(0))
    assert (int(ids.min()), int(ids.max())) == (0, 999)
    share = torch.bincount(ids)[:2] / len(ids)
    assert share[0] == pytest.approx((1 - 2**-0.05) / (1 - 1_001**-0.05), abs=0.003)
    assert share[0] > 1.5 * share[1]


def test_averages_count_only_what_is_there(modules: dict[str, ModuleType]) -> None:
    found = modules["gpu_models"].averaged(torch.tensor([[1.0, 3.0, 5.0, 7.0, 10.0]]), 2)
    assert found.tolist() == [[2.0, 6.0, 10.0]]


def test_the_floor_counts_each_distinct_row_of_a_table_once(modules: dict[str, ModuleType]) -> None:
    models = modules["gpu_models"]
    shape = models.Shape((models.Tables(1, (1, 2), 10, 8),), hidden=(4,), numbers=1)
    ids = torch.tensor([5, 6, 5, 5, 7, 7])  # two bags of one id, two of two: rows 5, 6 and 7
    moved = 2 * (2 * 8 * 4) + 6 * 8  # output of both features, and all ids
    assert models.floor_bytes(shape, 2, ids) == {
        "ids": 6,
        "distinct": 3,
        "fwd": moved + 3 * 8 * 4,
        "fwd_bwd": 2 * moved + 3 * 8 * 4 * 5,
    }


def test_a_wrong_row_is_no_right_answer(modules: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match="rows of t3"):
        modules["embedding_gpu_check"].compare("the rows of t3", torch.ones(2), torch.tensor([1.0, 1.001]), 1e-5)


# -- figures ---------------------------------------------------------------------------------------------------


def side(ms: dict[str, dict[str, float]], **more: Any) -> dict[str, Any]:
    return {"ms": ms, "failures": {}, "batches": 16, "ids_sum": 7, **more}


def test_the_fastest_variant_of_the_best_pass_counts_on_both_sides(modules: dict[str, ModuleType]) -> None:
    floor = {"copy_gb_per_s": 1_000.0, "floor": {"fwd": 2e8, "fwd_bwd": 4e8, "ids": 1, "distinct": 1}}
    ours = [side({"fwd": {"eager": 2.0, "graph": 1.0}, "step": {"graphs": 4.0}}, **floor)]
    peer = [
        side({"fwd": {"eager": 9.0}, "step": {"compiled": 12.0}, "step_eager": {"eager": 20.0}}),
        side({"fwd": {"eager": 8.0}, "step": {"compiled": 10.0, "graph": 11.0}, "step_eager": {"eager": 24.0}}),
    ]
    found = modules["embedding_gpu_figures"].figures("tiny", {"ours": ours, "fbgemm": peer})
    assert (found["fwd_vs_fbgemm"], found["step_vs_fbgemm"], found["step_vs_fbgemm_eager"]) == (8.0, 2.5, 5.0)
    assert found["met"] == {"fwd_vs_fbgemm": True, "step_vs_fbgemm": True, "step_vs_fbgemm_eager": True}
    assert found["passes_ms"]["fbgemm"]["step"] == {"compiled": [12.0, 10.0], "graph": [11.0]}
    assert found["floor_share"] == {"fwd": pytest.approx(0.2), "step": pytest.approx(0.1)}
    assert found["same_ids"] is True


def test_medium_has_a_ratio_and_a_bound_of_its_time(modules: dict[str, ModuleType]) -> None:
    floor = {"copy_gb_per_s": 1.0, "floor": {"fwd": 1, "fwd_bwd": 1, "ids": 1, "distinct": 1}}
    answers = {"ours": [side({"step": {"graphs": 33.0}}, **floor)], "fbgemm": [side({"step": {"compiled": 66.0}})]}
    found = modules["embedding_gpu_figures"].figures("medium", answers)
    assert (found["medium_vs_fbgemm"], found["medium_ms"]) == (2.0, 33.0)
    assert found["met"] == {"medium_vs_fbgemm": True, "medium_ms": False}


def test_a_later_pass_leaves_out_what_failed_or_is_far_behind(modules: dict[str, ModuleType]) -> None:
    first = side({"step": {"a": 1.0, "b": 1.2, "c": 2.0}}) | {"failures": {"fwd graph": "no"}}
    assert modules["embedding_gpu"].hopeless([first]) == ("fwd graph", "step c")


def test_models_of_an_earlier_run_of_the_day_stay_in_the_file(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = modules["embedding_gpu"]
    monkeypatch.setitem(sys.modules, "embedding_gpu_plot", None)  # no picture
    about = {"date": "2026-01-02", "machine": {"gpu": {"name": "NVIDIA H200"}}, "absent": {}}
    for name in ("tiny", "medium"):
        path = benchmark.save({**about, name: {"step": name}, "correct": {name: {}}, "versions": {}}, tmp_path)
    assert path.name == "2026-01-02_gpu_h200.json"
    kept = json.loads(path.read_text())
    assert (kept["tiny"], kept["medium"]) == ({"step": "tiny"}, {"step": "medium"})
    assert set(kept["correct"]) == {"tiny", "medium"}


def test_what_a_process_said_before_its_crash_is_kept(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    program = tmp_path / "crash.py"
    program.write_text("print('@{\"ms\": 1}', flush=True)\nraise MemoryError('no room')")
    found = modules["gpu_process"].run(str(program), "{}")
    assert found["ms"] == 1
    assert "no room" in found["crash"]


def test_overlapping_kernels_are_busy_once(modules: dict[str, ModuleType]) -> None:
    spans = [("b", 1e6, 3e6), ("a", 0.0, 2e6), ("inside", 1.5e6, 1.6e6), ("Memcpy HtoD", 5e6, 6e6)]
    assert modules["gpu_profile"].busy(spans) == 3.0
    assert modules["gpu_profile"].per_step(spans, 2)["a"] == 1e6
