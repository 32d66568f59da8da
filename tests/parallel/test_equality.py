"""The comparison that all tests of equality rest on: it passes what is equal, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.parallel import standard
from tests.parallel.equality import assembled, compare
from tests.parallel.jobs.training import train_alone

CASE = standard.case(1, "row", sizes=[[[5]], [[3]]], optimizer="Adagrad", options={"lr": 0.1}, clip=1.0)
Change = Callable[[dict[str, Any]], Any]


def _shortened(store: dict[str, Any]) -> None:
    store["ids"], store["rows"] = store["ids"][1:], store["rows"][1:]
    store["state"] = {name: column[1:] for name, column in store["state"].items()}


def test_a_run_equals_itself() -> None:
    run = train_alone(CASE)
    compare(CASE, [copy.deepcopy(run)], run)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda run: run["initial"]["item"]["rows"][3, 0].mul_(1 + 1e-6), id="an initial row"),
        pytest.param(lambda run: run["final"]["user"]["rows"][0, 1].add_(1e-4), id="a row"),
        pytest.param(lambda run: run["final"]["wide"]["state"]["sum"][2, 16].add_(1e-4), id="state"),
        pytest.param(lambda run: run["final"]["user"]["touched"][0].add_(1), id="a clock"),
        pytest.param(lambda run: run["final"]["user"]["ids"][0].add_(1), id="an id"),
        pytest.param(lambda run: _shortened(run["final"]["few"]), id="a row that is gone"),
        pytest.param(lambda run: run["final"]["item"].update(dim=7), id="a column that is gone"),
        pytest.param(lambda run: run["weights"]["top.bias"].add_(1e-4), id="a dense weight"),
        pytest.param(lambda run: run["steps"][1]["out"][0].add_(1e-4), id="an output"),
        pytest.param(lambda run: run["steps"][1]["every"][0, 5].add_(1e-4), id="an embedding"),
        pytest.param(lambda run: run["steps"][0].update(loss=0.1), id="a loss"),
        pytest.param(lambda run: run["steps"][1].update(norm=0.1), id="a norm"),
        pytest.param(lambda run: run["counts"].update(item=1), id="a count of steps"),
        pytest.param(lambda run: run["eval"][0].add_(1e-4), id="an output in eval"),
    ],
)
def test_whatever_differs_is_found(change: Change) -> None:
    run = train_alone(CASE)
    other = copy.deepcopy(run)
    change(other)
    with pytest.raises((AssertionError, RuntimeError)):
        compare(CASE, [other], run)


def test_one_number_of_a_row_is_the_same_on_all_that_have_columns_of_it() -> None:
    def part(column: int, total: float) -> dict[str, Any]:
        beside = {"touched": None, "counts": None, "dim": 1, "share": {"column": column}}
        return {"ids": torch.tensor([4]), "rows": torch.ones(1, 1), "state": {"sum": torch.tensor([total])}, **beside}

    want = {**part(0, 2.0), "rows": torch.ones(1, 2)}
    assert torch.equal(assembled("t", [part(0, 2.0), part(1, 2.0)], want)["sum"], torch.tensor([2.0]))
    with pytest.raises(AssertionError, match="holders differ in sum"):
        assembled("t", [part(0, 2.5), part(1, 2.0)], want)
