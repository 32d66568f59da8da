"""The parallel benchmark answers its questions on few rows; no time is asserted."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from hybridrec.parallel.ranks import Ranks

MODULES = ("parallel", "parallel_figures", "parallel_ours", "parallel_runs", "parallel_wire", "parallel_workload")


@pytest.fixture
def task(modules: dict[str, ModuleType], tmp_path: Path) -> Any:
    return modules["parallel_workload"].Task("ours_1", 1, str(tmp_path), tables=3, rows=50, dim=4, batch=64, batches=5)


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answer(ask: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All questions but those of the peer and of the planner, whose jobs are run below, on few rows."""
    cache = tmp_path_factory.mktemp("parallel")
    return ask("parallel", "--quick", "--only", "scaling,collectives,wire,overlap", "--cache", cache)


@pytest.mark.slow
def test_the_last_line_has_every_figure(answer: dict[str, Any]) -> None:
    assert answer["scaling_2"] > 0
    assert 0 < answer["collectives_per_step"] <= 3
    assert set(answer["collectives_by_tables"]) == {"count_1", "count_500"}
    assert 0 < answer["wire_bytes_vs_naive"] < 1
    assert answer["overlap"] <= 1
    assert "vs_torchrec" not in answer  # was not asked for
    assert {"machine", "versions", "date", "passes", "rows", "batch", "tables"} <= answer.keys()
    assert answer["failed"] == {}


@pytest.mark.slow
def test_two_ranks_lose_what_one_process_loses_before_the_clock(answer: dict[str, Any]) -> None:
    correct = answer["correct"]
    assert correct["passed"]
    assert correct["apart"]["check_alone"] <= 1e-5
    assert len(set(correct["losses"]["check"])) == 5  # each step changed something


@pytest.mark.slow
def test_the_chart_is_drawn_from_the_answer(answer: dict[str, Any], drawn: Callable[..., str]) -> None:
    assert "<svg" in drawn("parallel_plot", answer)


def test_an_unknown_part_is_refused_with_the_valid_names(
    modules: dict[str, ModuleType], refusal: Callable[..., str]
) -> None:
    said = refusal(modules["parallel"], "--only", "wires")
    assert "unknown part wires: choose from " in said
    assert "overlap" in said.splitlines()[-1]


# -- its parts -------------------------------------------------------------------------------------------------


def test_batches_are_as_the_question_states(modules: dict[str, ModuleType], task: Any) -> None:
    first, other = (modules["parallel_workload"].load(task, rank) for rank in (0, 1))
    assert [(rows.ids.shape, rows.dense.shape, rows.label.shape) for rows in first] == [((3, 64), (64, 13), (64,))] * 5
    assert all(rows.ids.min() >= 0 and rows.ids.max() < 50 for rows in first)
    assert not any(np.array_equal(a.ids, b.ids) for a, b in zip(first, other, strict=True))
    assert not np.array_equal(first[0].ids, first[1].ids)
    again = modules["parallel_workload"].load(task, 0)  # from the cache
    assert np.array_equal(first[2].dense, again[2].dense)


def test_rows_of_all_ranks_are_one_batch_in_their_order(modules: dict[str, ModuleType], task: Any) -> None:
    of = modules["parallel_workload"]
    parts = [of.load(task, rank)[0] for rank in (0, 1)]
    both = of.together(parts)
    assert np.array_equal(both.ids[:, 64:], parts[1].ids)
    assert np.array_equal(both.label[:64], parts[0].label)


def test_only_ids_of_other_ranks_travel_the_naive_way(modules: dict[str, ModuleType]) -> None:
    ids = np.array([[0, 1, 1, 3], [2, 2, 4, 5]])  # of rank 0, which has the even ones
    assert modules["parallel_workload"].naive_bytes(ids, rank=0, world=2, dim=16) == 4 * (8 + 2 * 64)
    assert modules["parallel_workload"].naive_bytes(ids, rank=1, world=2, dim=16) == 4 * (8 + 2 * 64)
    assert modules["parallel_workload"].naive_bytes(ids, rank=0, world=1, dim=16) == 0


def test_saved_weights_are_those_of_the_model(modules: dict[str, ModuleType], task: Any) -> None:
    ours = modules["parallel_ours"]
    ours.save_weights(task)
    model = ours.model_of(task)
    with np.load(modules["parallel_workload"].weights_file(task)) as found:
        assert np.array_equal(found["t2"][7:8], model.embeddings.lookup("id2", [7]).numpy())
        assert found["bottom.0.weight"].shape == (64, 13)
        assert np.array_equal(found["top.2.bias"], model.net.top[-1].bias.detach().numpy())


def test_losses_of_a_process_fall(modules: dict[str, ModuleType], task: Any) -> None:
    losses = modules["parallel_ours"].losses_alone(task)["losses"]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_a_rank_that_fails_ends_the_others_and_says_why(modules: dict[str, ModuleType], task: Any) -> None:
    runs = modules["parallel_runs"]
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('broken')\ntime.sleep(60)"
    with pytest.raises(runs.Failed, match="rank 1 ended with status 1: broken"):
        runs.answer_of([sys.executable, "-c", script], replace(task, world=2))


def test_ranks_that_do_not_end_are_ended(modules: dict[str, ModuleType], task: Any) -> None:
    runs = modules["parallel_runs"]
    with pytest.raises(runs.Failed, match="no answer in 1 seconds"):
        runs.answer_of([sys.executable, "-c", "import time; time.sleep(60)"], task, limit=1)


def test_the_answer_of_ranks_is_the_marked_line(modules: dict[str, ModuleType], task: Any) -> None:
    runs = modules["parallel_runs"]
    script = "import os; print('hello'); print('@{\"world\": ' + os.environ['WORLD_SIZE'] + '}')"
    assert runs.answer_of([sys.executable, "-c", script], task) == {"world": 1}
    with pytest.raises(runs.Failed, match="no rank gave an answer"):
        runs.answer_of([sys.executable, "-c", "print('hello')"], task)


def test_all_ranks_have_a_steady_heap(modules: dict[str, ModuleType], task: Any) -> None:
    found = modules["parallel_runs"].environment(task, 0, 1234)
    assert found["MALLOC_MMAP_MAX_"] == "0"
    assert (found["OMP_NUM_THREADS"], found["MASTER_PORT"], found["RANK"]) == ("1", "1234", "0")


def test_the_better_loop_of_the_peer_counts(modules: dict[str, ModuleType]) -> None:
    passes = {
        "ours_1": [{"rows_per_s": 100.0}, {"rows_per_s": 80.0}],
        "ours_2": [{"rows_per_s": 150.0}, {"rows_per_s": 180.0}],
        "torchrec": [{"rows_per_s": 40.0}, {"rows_per_s": 50.0}],
        "torchrec_pipeline": [{"rows_per_s": 60.0}, {"rows_per_s": 30.0}],
        "torchrec_rewritten": [{"rows_per_s": 90.0}],
    }
    found = modules["parallel_figures"].figures(passes)
    assert found["scaling_2"] == 1.8
    assert found["vs_torchrec"] == 3.0
    assert found["vs_torchrec_rewritten"] == 2.0  # shown beside it
    assert found["by_median"]["scaling_2"] == pytest.approx(165 / 90)
    assert "overlap" not in found


def test_the_worse_collection_counts(modules: dict[str, ModuleType]) -> None:
    passes = {"count_1": [{"collectives": 3.0}], "count_500": [{"collectives": 4.0}]}
    assert modules["parallel_figures"].figures(passes)["collectives_per_step"] == 4.0


def test_bytes_are_compared_with_those_of_the_naive_way(modules: dict[str, ModuleType]) -> None:
    passes = {"wire": [{"wire_bytes": 20, "naive_bytes": 100}]}
    assert modules["parallel_figures"].figures(passes) == {"wire_bytes_vs_naive": 0.2}


def test_overlap_is_that_of_the_fastest_pass_beside_the_growth_of_steps(modules: dict[str, ModuleType]) -> None:
    late = {"latency_ms": 2.0, "messages_per_step": 4.0}
    passes = {
        "overlap": [{"step_ms": 62.0, "hidden": 0.8, **late}, {"step_ms": 90.0, "hidden": 0.9, **late}],
        "overlap_now": [{"step_ms": 60.0}, {"step_ms": 70.0}],
    }
    found = modules["parallel_figures"].figures(passes)
    assert found["overlap"] == 0.8
    assert found["overlap_by_steps"] == 0.75  # 8 ms of latency made a step 2 ms longer


def test_a_prediction_is_as_wrong_as_its_worst_job(modules: dict[str, ModuleType]) -> None:
    passes = {
        "planned_row_1": [{"step_ms": 30.0, "predicted_ms": 10.0}, {"step_ms": 20.0, "predicted_ms": 10.0}],
        "planned_row_2": [{"step_ms": 12.0, "predicted_ms": 10.0}],
        "planned_table_2": [{"step_ms": 10.0, "predicted_ms": 40.0}],
    }
    found = modules["parallel_figures"].figures(passes)
    assert found["planner_error"] == 4.0
    assert found["planner_regret"] == 1.2
    assert found["measured_over_predicted"]["planned_row_1"] == 2.0


@pytest.mark.parametrize("scheme", ["replicated", "row", "table"])
def test_tables_alone_take_steps_by_their_plan(modules: dict[str, ModuleType], task: Any, scheme: str) -> None:
    ours = modules["parallel_ours"]
    short = replace(task, kind=f"planned_{scheme}_1", warm=1, steps=2, stretches=1)
    found = ours.kinds()[short.kind](short)
    assert found["predicted_ms"] == pytest.approx(sum(found["phases_ms"].values()))
    assert found["predicted_ms"] > 0
    assert found["step_ms"] > 0
    assert "rows_per_s" not in found, "it is no training step"


def test_ranks_that_lose_otherwise_give_no_figures(modules: dict[str, ModuleType]) -> None:
    judged = modules["parallel"].judged
    losses = {"check": [0.7, 0.6], "check_alone": [0.7, 0.6 + 1e-7], "torchrec_check": [0.7, 0.6]}
    assert judged(losses, {})["passed"]
    assert not judged({**losses, "torchrec_check": [0.7, 0.61]}, {})["passed"]
    assert not judged({"check_alone": [0.7, 0.6]}, {"check": "no gloo"})["passed"]
    assert judged({k: losses[k] for k in ("check", "check_alone")}, {"torchrec_check": "absent"})["passed"]


def test_a_late_message_tells_how_long_it_took(modules: dict[str, ModuleType]) -> None:
    here = threading.Event()  # whose `wait` is that of a message
    late = modules["parallel_wire"].Late(here, latency=0.05)
    assert not late.is_completed()
    time.sleep(0.03)
    here.set()
    assert late.taken >= 0.08
    assert late.is_completed()


def test_only_the_main_thread_is_blocked_and_once(modules: dict[str, ModuleType]) -> None:
    watch = modules["parallel_wire"].Watch()
    inner = watch.waiting(time.sleep)
    outer = watch.waiting(lambda seconds: inner(seconds))
    other = threading.Thread(target=inner, args=(0.05,))
    other.start()
    other.join()
    assert watch.blocked == 0.0
    began = time.perf_counter()
    outer(0.05)
    assert 0.05 <= watch.blocked <= time.perf_counter() - began


def test_calls_are_counted_while_watched_and_not_after(modules: dict[str, ModuleType]) -> None:
    wire, before = modules["parallel_wire"], distributed.all_to_all_single
    with wire.watched() as watch:
        with pytest.raises(ValueError, match="process group"):  # there is none here
            distributed.all_reduce(torch.zeros(1))
        assert distributed.all_to_all_single is not before
    assert dict(watch.calls) == {"all_reduce": 1}
    assert distributed.all_to_all_single is before


def test_models_that_are_sharded_while_watched_go_through_gloo(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, world = modules["parallel_wire"], Ranks(0, 2)
    monkeypatch.setattr(wire, "ranks", lambda: world)
    with wire.watched():
        assert world.shared is False
    assert world.shared is None
