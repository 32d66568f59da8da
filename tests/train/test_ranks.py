"""A Trainer over many ranks: real processes on Gloo, and the same numbers as one process on the same batches."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.parallel.pool import pool
from tests.train import ranked

JOBS = "tests.train.ranked"
RANKINGS = ("auc", "exact_auc", "gauc:user")  # they jump where two scores change places in their last digit:
PAIRS = 1e-3  # by a few pairs of rows; that ranks merge them exactly is tested in tests/metrics/test_together.py


def assert_close(found: Any, wanted: Any, close: float, where: str = "") -> None:
    """Numbers in the same places, as near as that."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for name in wanted:
            assert_close(found[name], wanted[name], close, f"{where}/{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_close(one, other, close, f"{where}/{at}")
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=close, atol=close, msg=lambda text: f"{where}: {text}")
    elif isinstance(wanted, float):
        close = PAIRS if where.rpartition("/")[2] in RANKINGS else close
        assert found == pytest.approx(wanted, rel=close, abs=close, nan_ok=True), where
    else:
        assert found == wanted, where


CASES = [
    (2, {}),
    (3, {"weighted": True, "accumulate": 2, "clip_norm": 0.5}),
    (3, {"rows": 40, "batch_size": 2, "epochs": 1, "metrics": ["auc", "exact_auc", "gauc:user", "ne", "ece"]}),
    (2, {"kind": "twotower", "metrics": ["auc"]}),
    (3, {"kind": "twotower", "accumulate": 2, "weighted": True, "metrics": ["auc"]}),
]


@pytest.mark.parametrize(("world", "options"), CASES, ids=lambda each: str(each))
def test_many_ranks_train_validate_and_predict_as_one_process_does(world, options):
    alone = ranked.fitted(**options)
    found = pool(world).run(f"{JOBS}:fitted", **options)
    for each in found:
        assert_close(each, alone, 1e-5)
        for part in ("weights", "buffers", "scores"):
            assert_close(each[part], found[0][part], 0.0)
        assert str(each["records"]) == str(found[0]["records"])


def test_a_fit_that_ends_before_its_data_leaves_nothing_on_its_way():
    for each in pool(2).run(f"{JOBS}:fitted_twice"):
        assert_close(each, ranked.fitted_twice(), 1e-5)


def test_by_rows_every_rank_has_its_own_batches_and_every_row_counts_once():
    options = {"rows": 300, "batch_size": 20, "by": "rows", "epochs": 1}
    for each in pool(3).run(f"{JOBS}:fitted", **options):
        assert each["rows"] == 270
        assert each["records"][-1]["step"] == math.ceil(90 / 20)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows_are_evaluated_and_predicted_once_also_where_there_are_fewer_than_ranks(tmp_path, rows):
    alone = ranked.few_rows(rows, str(tmp_path))
    table = pq.read_table(tmp_path / "scores.parquet")
    for each in pool(3).run(f"{JOBS}:few_rows", rows=rows, folder=str(tmp_path)):
        assert_close(each, alone, 1e-6)
    assert_close(pq.read_table(tmp_path / "scores.parquet").to_pydict(), table.to_pydict(), 1e-6)


def test_a_callback_that_stops_on_one_rank_stops_all_at_one_step():
    one, two, three = pool(3).run(f"{JOBS}:stopped_by", rank=2)
    assert one == two == three
    assert one["stopped"] == "one rank has enough"
    assert one["step"] >= 3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("batch_size", "ranks disagree on the steps of the whole fit: rank 0 has 5, rank 1 has"),
        ("options", "ranks disagree on the options of the Trainer"),
        ("model", "ranks disagree on the model"),
        ("optimizer", "optimizer was made before the model was sharded over 2 ranks.*give a function"),
        ("ddp", "give the Trainer the model inside it"),
        ("shard", "the dataset is the part of rank 0 of 5, and this is rank . of 2"),
    ],
)
def test_what_cannot_be_trained_together_is_refused_on_every_rank(what, words):
    for each in pool(2).run(f"{JOBS}:refused", what=what):
        assert re.search(words, each), each


def test_only_rank_0_shows_progress(tmp_path):
    one, two = pool(2).run(f"{JOBS}:quiet", folder=str(tmp_path))
    assert (one["main"], two["main"]) == (True, False)
    assert "valid" in one["said"]
    assert two["said"] == ""


@pytest.mark.parametrize("scheme", ["column", "row", "replicated"])
def test_norms_in_records_are_those_of_whole_rows(scheme):
    alone = ranked.norms_of(scheme)
    assert all(alone.values())
    for each in pool(3).run(f"{JOBS}:norms_of", scheme=scheme):
        assert each == pytest.approx(alone, rel=1e-6)


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a fit that two ranks broke off at step 8, with a checkpoint of step 6, and what they say."""
    folder = tmp_path_factory.mktemp("run")
    return folder, pool(2).run(f"{JOBS}:drawn", folder=str(folder), crash=8)


def test_a_fit_with_dropout_goes_on_as_if_nothing_had_happened(broken_off, tmp_path):
    left_alone = pool(2).run(f"{JOBS}:drawn", folder=str(tmp_path / "a"), save_every=None)
    assert left_alone[0]["drawn"] != left_alone[1]["drawn"], "ranks draw for themselves"
    folder, begun = broken_off
    resumed = pool(2).run(f"{JOBS}:drawn", folder=str(shutil.copytree(folder, tmp_path / "b")))
    for whole, first, rest in zip(left_alone, begun, resumed, strict=True):
        saved = 3 * 6  # numbers that were drawn before step 6 was saved
        assert first["drawn"][:saved] + rest["drawn"] == whole["drawn"]
        assert (rest["step"], rest["weights"].keys()) == (whole["step"], whole["weights"].keys())
        assert all(torch.equal(part, whole["weights"][name]) for name, part in rest["weights"].items())


def test_in_another_world_rank_0_draws_on_and_others_begin_anew(broken_off, tmp_path):
    folder, two = broken_off
    three = pool(3).run(f"{JOBS}:drawn", folder=str(shutil.copytree(folder, tmp_path / "c")))
    assert three[0]["drawn"][1:3] == two[0]["drawn"][19:21], "by Python and NumPy, which no layer draws from"
    firsts = [each["drawn"][:3] for each in three]
    assert all(firsts[a] != firsts[b] for a, b in ((0, 1), (0, 2), (1, 2)))


def test_the_clock_of_rank_0_has_all_ranks_save(tmp_path):
    one, two = pool(2).run(f"{JOBS}:saved_by_the_clock", folder=str(tmp_path), minutes=0.3 / 60)
    assert one == two
    assert one["step"] == 45
    assert len(one["saved"]) >= 2, "one more than at the end"
    assert "step-000000045" in one["saved"]


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
@pytest.mark.parametrize("own", [True, False])
def test_rank_0_alone_writes_events(tmp_path, own):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; pip install tensorboard")
    for found in pool(2).run(f"{JOBS}:events_of", folder=str(tmp_path), own=own):
        assert found == ["events" if own else "tensorboard"]


@pytest.mark.parametrize("row", [0, 13, 39])
def test_a_score_that_is_not_a_number_is_named_on_all_ranks(tmp_path, row):
    for said in pool(3).run(f"{JOBS}:nan_scores", row=row, folder=str(tmp_path)):
        assert re.fullmatch(rf"(column 'age' is nan in .*row {row}, so its score is not a number.*\n?){{2}}", said), (
            said
        )
    assert not list(tmp_path.glob("scores*"))


@pytest.mark.parametrize("what", ["fit", "predict"])
def test_a_fault_that_a_rank_finds_at_the_very_end_is_told_by_all(what):
    found = pool(3).run(f"{JOBS}:found_late", rank=1, what=what)
    assert found[1] == "ValueError: an earlier lookup took its rows for zeros"
    for other in (found[0], found[2]):
        told = "RankFailure: rank 1 failed at step 2: ValueError: an earlier lookup took its rows for zeros"
        assert other.startswith(told)
