"""A Trainer over many ranks: real processes on Gloo, and the same numbers as one process on the same batches."""

from __future__ import annotations

import math
import re
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
