"""The benchmark of tables that are dynamic, or larger than a card, answers without one; no time is asserted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hybridrec.train.step_memory import step_memory

MODULES = ("embedding_gpu_ours", "gpu_models", "gpu_process", "tiers_gpu", "tiers_gpu_medium", "tiers_gpu_models")
MODULES += ("tiers_gpu_tiered",)
PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
pytest.importorskip("triton", reason="GPU kernels need triton")


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ids_are_found_and_taken_in_at_every_load(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_gpu", "--smoke", "--only", "keys")
    assert list(answer["loads"]) == ["0.5", "0.75", "0.95"]
    assert all(sorted(each) == ["find_gkv_s", "insert_gkv_s", "slots_gkv_s"] for each in answer["loads"].values())
    found = {name: answer[name] for name in answer["goals"] if name in answer}
    assert sorted(found) == ["find_gkv_s", "insert_gkv_s"]
    assert found.items() <= answer["loads"]["0.75"].items()


@pytest.mark.slow
def test_steps_are_timed_wherever_rows_are(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_gpu", "--smoke", "--only", "tiered,medium")
    assert answer["failed"] == {}
    assert {"hit_rate", "hot_ms", "tiered_ms", "tiered_warm"} <= answer["tiered"]["criteo"].keys()
    assert answer["tiered_warm"] == answer["tiered"]["criteo"]["tiered_warm"]
    assert answer["medium_fp32"] == answer["medium"]["ms"]
    assert (
        answer["medium"]["batches"] == 1 + 2 * 4
    )  # each drawn once: four to warm up, four timed, and one that follows


@pytest.mark.slow
def test_steps_of_fixed_and_dynamic_tables_are_compared(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_gpu", "--smoke", "--only", "steps")
    assert answer["dynamic_vs_fixed"] == answer["steps_ms"]["dynamic_ms"] / answer["steps_ms"]["fixed_ms"]
    assert answer["steps"] == 1  # as many as were asked for


def test_an_unknown_model_is_refused_with_the_valid_ones(
    modules: dict[str, ModuleType], refusal: Callable[..., str]
) -> None:
    said = refusal(modules["tiers_gpu"], "--smoke", "--models", "small,criteo2tb")
    assert "unknown model criteo2tb: choose from " in said
    assert "criteo1tb" in said.splitlines()[-1]


# -- models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tables", "gib", "half", "rowwise"),
    [
        ("small", 107, 26.3, False, False),
        ("small_rowwise", 107, 26.3, False, True),
        ("criteo1tb", 26, 97.4, False, True),
        ("medium_fp32", 311, 206.2, False, True),
        ("medium", 311, 206.2, True, True),
    ],
)
def test_the_models_have_the_sizes_that_are_told(
    modules: dict[str, ModuleType], name: str, tables: int, gib: float, half: bool, rowwise: bool
) -> None:
    shape = modules["tiers_gpu_models"].shape_of(name)
    assert (len(shape.tables), shape.half, shape.rowwise) == (tables, half, rowwise)
    assert sum(4 * rows * dim for rows, dim in shape.tables) / 2**30 == pytest.approx(gib, abs=0.05)


def test_the_layers_of_a_dlrm_take_the_batches_of_its_tables(modules: dict[str, ModuleType]) -> None:
    ours, shape = modules["embedding_gpu_ours"], modules["tiers_gpu_models"].shape_of("criteo1tb", 50)
    batch = ours.batch_of(shape, 4, modules["gpu_models"].sample(shape, 4, 0, "cpu"))
    assert ours.model_of(shape, ours.collection(shape, "cpu"), "cpu")(batch).shape == (4,)


# -- parts and figures -----------------------------------------------------------------------------------------


def test_a_part_that_fails_leaves_the_others_their_figures(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = modules["tiers_gpu"]
    answers = {"tiers_gpu_tiered.py": {"hot_ms": 1, "crash": "no room"}, "tiers_gpu_medium.py": {"ms": 50.0}}
    monkeypatch.setattr(benchmark, "run", lambda program, task: dict(answers[program]))
    monkeypatch.setattr(benchmark, "parsed", lambda parser, small: parser.parse_args(["--only", "tiered,medium"]))
    with pytest.raises(SystemExit, match=r"tiered small: RuntimeError: no room; before that: \{'hot_ms': 1\}"):
        benchmark.main()
    shown = capsys.readouterr().out
    assert "medium_fp32" in shown
    assert "tiered_warm" not in shown


def test_without_the_peer_there_is_a_reason_and_no_ratio(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = modules["tiers_gpu"]
    monkeypatch.setattr(benchmark, "run", lambda program, task: {"tiered_ms": 5.0})
    answer: dict[str, Any] = {"failed": {}, "absent": {}, "versions": {}}
    benchmark.uvm(SimpleNamespace(smoke=True, models=None, batch=2, batches=2, steps=1), answer)
    assert answer == {"failed": {}, "absent": {"fbgemm": "a smoke run has no card"}, "versions": {}}


def test_the_fastest_way_of_the_peer_counts(modules: dict[str, ModuleType]) -> None:
    ours = {"ids_sum": 7, "hot_ms": 4.0, "tiered_ms": 5.0, "hit_rate": 0.9, "tiered_warm": 0.8}
    peer = {"ids_sum": 7, "ms": {"step": {"compiled": 20.0, "compiled, rows ahead": 10.0}}, "failures": {"a": "b"}}
    found = modules["tiers_gpu"].compared(ours, {**peer, "crash": "late"})
    assert found["tiered_vs_uvm"] == 2.0
    assert found["failures"] == {"a": "b", "ended early": "late"}
    with pytest.raises(AssertionError, match="same ids"):
        modules["tiers_gpu"].compared({**ours, "ids_sum": 8}, peer)


def test_parts_and_models_of_an_earlier_run_of_the_day_stay_in_the_file(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = modules["tiers_gpu"]
    monkeypatch.setitem(sys.modules, "tiers_gpu_plot", None)  # no picture
    about = {"date": "2026-01-02", "machine": {"gpu": {"name": "NVIDIA H200"}}, "versions": {}}
    for part in (
        {"tiered": {"small": {"tiered_warm": 0.7}}},
        {"tiered": {"criteo1tb": {"tiered_warm": 0.9}}, "tiered_warm": 0.9},
        {"medium": {"ms": 50.0}},
    ):
        path = benchmark.save({**about, **part}, tmp_path)
    kept = json.loads(path.read_text())
    assert path.name == "2026-01-02_tiers_gpu_h200.json"
    assert set(kept["tiered"]) == {"small", "criteo1tb"}
    assert (kept["tiered_warm"], kept["medium_fp32"]) == (0.7, 50.0)  # the least of all models


def test_the_chart_is_drawn_from_the_answer(drawn: Callable[..., str]) -> None:
    tiered = {"hot_ms": 5.0, "tiered_ms": 7.0}
    answer = {
        **{"date": "2026-01-02", "machine": {}, "versions": {"torch": "2"}, "batch": 2, "batches": 2},
        **{"tiered": {"small": tiered}, "uvm": {"criteo1tb": {**tiered, "uvm_ms": {"compiled": 9.0}}}},
        **{"tiered_warm": 0.7, "medium": {"batch": 32_768}, "medium_fp32": 50.0},
    }
    assert "<svg" in drawn("tiers_gpu_plot", answer)


# -- all rows there, and a fifth -------------------------------------------------------------------------------


def test_a_row_in_the_place_of_another_is_no_right_answer(modules: dict[str, ModuleType]) -> None:
    work = modules["tiers_gpu_tiered"]
    rows = torch.rand(64, 16).mul_(0.1)
    wanted = work.Ran(1.0, 1.0, [0.7], {"t3": rows})
    rounded, mixed, again = rows.clone(), rows.clone(), rows.clone()
    rounded[5, :3] += 0.06  # updates whose sign rounding decided
    work.check(wanted._replace(rows={"t3": rounded}), wanted, wanted)
    mixed[:6] = rows[:6].flip(0)
    with pytest.raises(AssertionError, match="6 of 64 rows are others; of two runs alike 0 are"):
        work.check(wanted._replace(rows={"t3": mixed}), wanted, wanted)
    again[:2] += 0.06  # of some rows, that of all numbers
    work.check(wanted._replace(rows={"t3": mixed}), wanted, wanted._replace(rows={"t3": again}))
    with pytest.raises(AssertionError, match="losses differ"):
        work.check(wanted._replace(losses=[0.8]), wanted, wanted)


# -- Medium in float32 -----------------------------------------------------------------------------------------


def test_a_row_that_changed_without_a_batch_is_no_right_answer(modules: dict[str, ModuleType]) -> None:
    torch.manual_seed(0)  # of other layers no unit may be active, and then no row is trained
    models, work = modules["gpu_models"], modules["tiers_gpu_medium"]
    task = modules["gpu_process"].Task("", "cpu", batch=4)
    shape = models.Shape((models.Tables(1, (1, 2), 500, 8),), hidden=(4,), numbers=1, rowwise=True)
    steps = work.Steps(task, shape, work.trainer_of(task, shape))
    steps.several(2)
    steps.check()
    unused = steps.watched[~steps.used][0]
    steps.emb["t0"].weight[unused, 3] += 1
    with pytest.raises(AssertionError, match="1 rows changed that no batch had"):
        steps.check()


@pytest.mark.parametrize(("batch", "gib"), [(32_768, 15.1), (65_536, 30.2)])
def test_a_trainer_is_shown_batches_like_those_of_the_steps(
    modules: dict[str, ModuleType], batch: int, gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, work = modules["embedding_gpu_ours"], modules["tiers_gpu_medium"]
    shape, card = modules["tiers_gpu_models"].shape_of("medium_fp32"), torch.device("meta")
    monkeypatch.setattr("hybridrec.embedding.collection.device_of", lambda given: card)
    with card:
        model = ours.model_of(shape, ours.collection(shape, "meta"), "meta")
    needed = step_memory(model, work.like(shape, batch), card)
    assert needed.rows == batch
    assert needed.total / 2**30 == pytest.approx(gib, abs=0.1)


def test_smaller_batches_are_tried_where_larger_ones_lack_memory_each_in_a_process(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, tasks = modules["tiers_gpu"], []

    def run(program: str, task: str) -> dict[str, Any]:
        tasks.append(json.loads(task)["batch"])
        return {"ms": 9.0} if tasks[-1] <= room else {"lacked": "no room", "peak_gib": 1.0}

    monkeypatch.setattr(benchmark, "run", run)
    task = modules["gpu_process"].Task("medium_fp32", batch=64)
    room = 64
    assert benchmark.largest(task) == {"lacked": {}, "ms": 9.0}
    room = 32
    assert benchmark.largest(task) == {"lacked": {"64": "no room"}, "ms": 9.0}
    assert tasks == [64, 64, 32]
    room = 0
    with pytest.raises(RuntimeError, match=r"no batch is small enough: \{'64': 'no room', '32': 'no room'\}"):
        benchmark.largest(task)


def test_a_size_for_which_there_is_no_memory_is_told_with_what_was_lacking(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, task = modules["tiers_gpu_medium"], modules["gpu_process"].Task("medium_fp32", "cpu", batch=2, most_rows=50)

    def without_room(*_: object) -> None:
        raise torch.OutOfMemoryError("no room for 1.18 GiB")

    monkeypatch.setattr(work, "measured", without_room)
    monkeypatch.setattr(sys, "argv", ["tiers_gpu_medium.py", task.to_json()])
    work.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("@"))
    assert found["lacked"] == "no room for 1.18 GiB"
    assert "ms" not in found


# -- the peer --------------------------------------------------------------------------------------------------


@pytest.fixture
def uvm(modules: dict[str, ModuleType], fbgemm_stub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The peer's module over what stands for FBGEMM; it finds those of the benchmark beside it."""
    before = set(sys.modules)
    for folder in (fbgemm_stub.parent, PEERS):
        monkeypatch.syspath_prepend(str(folder))
    import fbgemm_uvm_gpu  # pyright: ignore[reportMissingImports] (on the path of this test)

    yield fbgemm_uvm_gpu
    for name in [name for name in set(sys.modules) - before if "fbgemm" in name]:
        del sys.modules[name]


def test_the_peer_times_steps_without_its_pipeline_where_that_fails(
    modules: dict[str, ModuleType], uvm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = modules["gpu_process"].Task("criteo1tb", "cpu", batch=4, batches=2, steps=1, warm=2, most_rows=50)
    monkeypatch.setattr(sys, "argv", ["fbgemm_uvm_gpu.py", task.to_json()])
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, mode=None: None)
    uvm.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("@"))
    assert list(found["ms"]["step"]) == ["compiled"]
    assert {"step compiled, graph of the dense part", "tables, rows ahead"} <= set(found["failures"])  # no GPU here


def test_rows_that_come_ahead_are_those_of_the_next_batch(
    modules: dict[str, ModuleType], uvm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = modules["tiers_gpu_models"].shape_of("criteo", 50)
    task = modules["gpu_process"].Task("criteo", "cpu", batch=4, batches=3)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    peer = uvm.Cached(task, shape, ahead=True)
    for _ in range(2):  # ways to take a step, which follow each other
        step = peer.in_turn(peer.eager())
        for _ in range(5):
            step(peer.samples[0])
    assert len(peer.emb.looked) == 10
    assert all(a is b for a, b in zip(peer.emb.fetched, peer.emb.looked[1:], strict=False))
    assert len({id(ids) for ids in peer.emb.looked}) == 3


def test_each_cached_row_knows_the_last_feature_of_its_table(uvm: Any) -> None:
    cached, whole = uvm.EmbeddingLocation.MANAGED_CACHING, uvm.EmbeddingLocation.DEVICE
    found = uvm.cache_state([3, 5, 2], [cached, whole, cached], [0, 0, 1, 2])
    assert found.cache_index_table_map.tolist() == [1, 1, 1, 3, 3]
    assert found.cache_hash_size_cumsum == [0, 0, -1, 3, 5]
    assert found.total_cache_hash_size == 5
