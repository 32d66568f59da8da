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

MODULES = (
    "gpu_models",
    "gpu_process",
    "gpu_profile",
    "embedding_gpu",
    "embedding_gpu_figures",
    "embedding_gpu_check",
    "embedding_gpu_known",
)


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


# -- what an earlier answer knows ------------------------------------------------------------------------------


@pytest.fixture
def earlier(modules: dict[str, ModuleType], tmp_path: Path) -> Path:
    """An answer for tiny: two passes of ours, one of the peer."""
    floor = {"copy_gb_per_s": 1.0, "floor": {"fwd": 1, "fwd_bwd": 1, "ids": 1, "distinct": 1}}
    first = side({"fwd": {"eager": 2.0, "graph": 3.0}, "step": {"graphs": 4.0, "eager": 6.0}}, **floor)
    second = side({"fwd": {"eager": 2.5, "graph": 1.0}, "step": {"graphs": 5.0}, "step_eager": {"eager": 6.0}}, **floor)
    first["failures"] = {"step graphs, compiled": "no room", "profile step": "no room", "fwd_bwd eager": "no room"}
    second["failures"] = {"fwd graph": "only once"}
    peer = side({"fwd": {"eager": 1.0, "graph": 1.0}, "step": {"compiled": 3.0, "compiled, reduce-overhead": 3.1}})
    peer |= {"failures": {"fwd_bwd graph": "no"}, "crash": "it ended"}
    peer["ms"]["fwd_bwd"] = {"eager": 2.0}
    tiny = modules["embedding_gpu_figures"].figures("tiny", {"ours": [first, second], "fbgemm": [peer]})
    path = tmp_path / "earlier_gpu.json"
    path.write_text(json.dumps({"tiny": tiny, "passes": 2, "correct": {"small": {}}, "versions": {}}))
    return path


LEFT_OUT = {
    "ours": ["fwd eager", "step graphs, compiled"],  # by the best pass; fwd_bwd has no time, the step a copy
    "fbgemm": ["fwd_bwd graph", "step compiled, reduce-overhead"],  # both lookups are the fastest
}


def answered(
    benchmark: ModuleType, patch: pytest.MonkeyPatch, asked: list[Any], models: list[str], known: Any
) -> dict[str, Any]:
    """The answer of two passes whose processes tell the same each time; what they are asked goes into `asked`."""

    def run(program: str, task: str) -> dict[str, Any]:
        asked.append((program, json.loads(task)))
        floor = {"copy_gb_per_s": 1.0, "floor": {"fwd": 1, "fwd_bwd": 1, "ids": 1, "distinct": 1}}
        return side({"step": {"a": 1.0, "b": 2.0}}, **floor)

    patch.setattr(benchmark, "run", run)
    patch.setattr(benchmark, "why_no_peer", lambda args: None)
    patch.setattr(benchmark, "check", lambda models, device: {name: {"passed": True} for name in models})
    sizes = {"batch": 8, "batches": 1, "steps": 1, "passes": 2, "smoke": False, "no_peer": False}
    return benchmark.measure(benchmark.Options(models=models, known=known, **sizes))


def test_what_failed_or_was_slower_in_an_earlier_answer_is_left_out(
    modules: dict[str, ModuleType], earlier: Path
) -> None:
    known = modules["embedding_gpu_known"].known_from(str(earlier))
    assert known.left_out("tiny", ["ours", "fbgemm"]) == LEFT_OUT


def test_a_side_or_model_that_the_earlier_answer_lacks_is_tried_whole(
    modules: dict[str, ModuleType], earlier: Path
) -> None:
    known = modules["embedding_gpu_known"].known_from(str(earlier))
    assert known.left_out("tiny", ["other"]) == {"other": []}
    assert known.left_out("small", ["ours", "fbgemm"]) == {"ours": [], "fbgemm": []}


def test_what_is_known_is_left_out_of_every_pass_and_told(
    modules: dict[str, ModuleType], earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, asked = modules["embedding_gpu"], []
    known = modules["embedding_gpu_known"].known_from(str(earlier))
    answer = answered(benchmark, monkeypatch, asked, ["tiny", "small"], known)
    for name, expected in (("tiny", LEFT_OUT), ("small", {"ours": [], "fbgemm": []})):
        assert (answer[name]["known"], answer[name]["left_out"]) == ("earlier_gpu.json", expected)
        for at, program in benchmark.PROGRAMS.items():
            skipped = [task["skip"] for which, task in asked if (which, task["model"]) == (program, name)]
            assert skipped == [expected[at], [*expected[at], "step b"]]
    assert "left out, by earlier_gpu.json: fwd eager; step graphs, compiled" in benchmark.lines(answer)


def test_without_an_earlier_answer_every_variant_is_tried(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, asked = modules["embedding_gpu"], []
    answer = answered(benchmark, monkeypatch, asked, ["tiny"], known=None)
    assert not {"known", "left_out"} & answer["tiny"].keys()
    assert [task["skip"] for _, task in asked] == [[], [], ["step b"], ["step b"]]


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read"), ("{", "is no JSON"), ("[]", "is no answer of a benchmark")]
)
def test_a_known_file_that_cannot_be_read_is_refused_by_its_name(
    modules: dict[str, ModuleType], refusal: Callable[..., str], tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "known.json"
    if content is not None:
        path.write_text(content)
    last = refusal(modules["embedding_gpu"], "tiny", "--known", str(path)).splitlines()[-1]
    assert "error: argument --known: " in last
    assert said in last
    assert str(path) in last


def test_a_known_file_without_the_models_is_refused_with_those_that_it_has(
    modules: dict[str, ModuleType], refusal: Callable[..., str], earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    said = refusal(modules["embedding_gpu"], "small", "medium", "--known", str(earlier))
    assert f"error: --known {earlier} has none of small, medium; it has tiny" in said


def test_a_smoke_run_takes_no_known_file(
    modules: dict[str, ModuleType], refusal: Callable[..., str], earlier: Path
) -> None:
    said = refusal(modules["embedding_gpu"], "tiny", "--smoke", "--known", str(earlier))
    assert f"--known {earlier} says nothing of a smoke run" in said


# -- what is kept ----------------------------------------------------------------------------------------------


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
