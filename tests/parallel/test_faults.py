"""What ranks are told where something is wrong: on all of them, at once, by name."""

from __future__ import annotations

import re

import pytest
import torch

import hybridrec as hr
from tests.parallel import standard
from tests.parallel.pool import pool
from tests.parallel.training_case import Spec

FAULTS = "tests.parallel.jobs.faults"
ITEM: Spec = {"name": "item", "dim": 8, "rows": 10, "combiner": "sum"}


@pytest.mark.parametrize("scheme", ["replicated", "table", "row", "column"])
@pytest.mark.parametrize(
    ("rank", "value"), [(1, -1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0, 12), (1, 2**63 - 1)))]
)
def test_an_id_out_of_range_is_named_on_its_rank_and_the_others_are_told_of_it(
    scheme: str, rank: int, value: int
) -> None:
    case = standard.case(2, scheme, sizes=[[[3, 2]]])
    found = pool(2).run(f"{FAULTS}:stranger", case=case.to_json(), rank=rank, feature="history", value=value)
    assert found[rank]["kind"] == "ValueError"
    assert re.search(
        rf"id {value} at position \d+ of feature 'history' is outside table 'item', 0 … 11", found[rank]["text"]
    )
    other = found[1 - rank]
    assert other["kind"] == "RuntimeError"
    assert f"rank {rank}" in other["text"]
    assert [each["rows"] for each in found] == [3, 2], "all go on with the next batch"


def test_an_id_out_of_range_that_goes_ahead_is_told_at_its_lookup() -> None:
    case = standard.case(2, "mixed", sizes=[[[3, 2]]])
    given = {"case": case.to_json(), "rank": 1, "feature": "liked", "value": 12, "ahead": True}
    found = pool(2).run(f"{FAULTS}:stranger", **given)
    assert [each["kind"] for each in found] == ["RuntimeError", "ValueError"]
    assert "feature 'liked'" in found[1]["text"]
    assert [each["rows"] for each in found] == [3, 2]


@pytest.mark.parametrize(
    ("tables", "placements", "world", "words"),
    [
        pytest.param([ITEM], [], 2, "item", id="a table has no place"),
        pytest.param(
            [ITEM], [{"table": "strange", "scheme": "row", "devices": [0, 1]}], 2, "strange|item", id="unknown"
        ),
        pytest.param([ITEM], [{"table": "item", "scheme": "row", "devices": [0, 1, 2]}], 3, "3", id="another world"),
        pytest.param(
            [ITEM],
            [{"table": "item", "scheme": "column", "devices": [0, 1], "columns": [4, 3]}],
            2,
            "7|8",
            id="columns that do not add up",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_on_all_ranks(
    tables: list[Spec], placements: list[Spec], world: int, words: str
) -> None:
    for found in pool(2).run(f"{FAULTS}:planned", tables=tables, placements=placements, world=world):
        assert found["kind"] == "ValueError"
        assert re.search(words, found["text"])


@pytest.mark.parametrize("what", ["rows", "plan", "dense"])
def test_ranks_that_differ_are_told_so_at_start(what: str) -> None:
    for found in pool(2).run(f"{FAULTS}:differing", what=what):
        assert found["kind"] == "ValueError"
        assert "ranks disagree" in found["text"]


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_with_a_gradient_on_some_ranks_only_go_well_or_are_refused_on_all(rank: int) -> None:
    found = pool(2).run(f"{FAULTS}:some_learned", rank=rank)
    rows = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10)]).lookup("item", torch.arange(6).reshape(3, 2))
    refused = [each["kind"] == "ValueError" for each in found]
    assert all(refused) or not any(refused)
    for each in found:
        torch.testing.assert_close(each["then"], rows.sum(1))
        assert all(refused) or torch.equal(each["out"], each["then"])


@pytest.mark.parametrize("scheme", standard.ANY)
def test_gradients_that_are_not_finite_on_one_rank_are_an_error_on_all_before_anything_changes(scheme: str) -> None:
    case = standard.case(2, scheme, options={"lr": 0.1, "nan": "raise"}, sizes=[[[3, 3]]])
    for found in pool(2).run(f"{FAULTS}:not_finite", case=case.to_json(), rank=1):
        assert found["kind"] == "FloatingPointError"
        assert found["same"]


@pytest.mark.parametrize("scheme", standard.ANY)
def test_rows_whose_gradient_is_not_finite_are_skipped(scheme: str) -> None:
    case = standard.case(2, scheme, options={"lr": 0.1, "nan": "skip"}, sizes=[[[3, 3]]])
    for found in pool(2).run(f"{FAULTS}:not_finite", case=case.to_json(), rank=1):
        assert found["kind"] == ""
        assert found["finite"]
