"""What ranks on GPUs are told where something is wrong: on all of them, at once, by name."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel.gpu import small
from tests.parallel.pool import pool

pytestmark = needs_gpu

FAULTS = "tests.parallel.jobs.faults"
JOBS = "tests.parallel.jobs.on_device"


@pytest.mark.parametrize(
    ("scheme", "ahead"),
    [("mixed", True), *(pytest.param(each, False, marks=pytest.mark.slow) for each in ("row", "table", "replicated"))],
)
def test_an_id_out_of_range_is_named_on_its_rank_and_the_others_are_told_of_it(scheme: str, ahead: bool) -> None:
    case = small.case(2, scheme, sizes=[[[2, 3]]])
    given = {"rank": 1, "feature": "history", "value": 7, "ahead": ahead}
    found = pool(2).run(f"{FAULTS}:stranger", case=case.to_json(), **given)
    assert [each["kind"] for each in found] == ["RuntimeError", "ValueError"]
    assert re.search(r"id 7 at position \d+ of feature 'history' is outside table 'item', 0 … 6", found[1]["text"])
    assert "rank 1 has ids that cannot be looked up" in found[0]["text"]
    assert [each["rows"] for each in found] == [2, 3], "all go on with the next batch"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offsets", "row", "start"), [([0, 2, 1, 3], 1, 2), ([0, 1, 2, 2], 3, 2), ([1, 1, 2, 3], 0, 1)]
)
def test_offsets_that_are_none_are_refused(offsets: list[int], row: int, start: int) -> None:
    found = pool(2).run(f"{JOBS}:looked_up_by", offsets=offsets)
    assert found[0]["kind"] == "ValueError"
    assert f"row {row} starts at {start}" in found[0]["text"]
    assert found[1]["kind"] == "RuntimeError"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["row", "table", "replicated"])
def test_gradients_that_are_not_finite_end_the_step_on_all_ranks(scheme: str) -> None:
    for found in pool(2).run(f"{JOBS}:not_finite", scheme=scheme):
        assert found["kind"] == "FloatingPointError"
        assert found["same"], "nothing was changed"


@pytest.mark.slow
def test_rows_are_read_by_id_and_refused_out_of_range() -> None:
    for found in pool(2).run(f"{JOBS}:read"):
        assert found["rows"], "rows by id are those of the whole table"
        assert found["refused"]["kind"] in ("ValueError", "RuntimeError")


@pytest.mark.slow
def test_a_step_sends_three_messages_however_many_tables() -> None:
    for found in pool(2).run(f"{JOBS}:traffic", tables=5):
        assert found["calls"] == {"sizes": 1, "ids": 1, "vectors": 1, "gradients": 1}
