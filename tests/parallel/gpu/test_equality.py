"""N ranks on a GPU equal one process on the CPU: schemes and their mixes, and all that a lookup may have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel import standard
from tests.parallel.drawn import OPTIMIZERS
from tests.parallel.equality import check, compare_stores
from tests.parallel.gpu import small
from tests.parallel.jobs.exact import train_alone
from tests.parallel.pool import pool

pytestmark = needs_gpu


def test_a_mix_of_schemes_with_ids_that_go_ahead_equals_one_process() -> None:
    check(small.case(2, "mixed", ahead=True, optimizer="Adagrad", options={"lr": 0.1}))


def test_weights_that_take_a_gradient_take_it_over_ranks() -> None:
    check(small.case(2, "mixed", weighted=True, learned=True, sizes=[[[2, 3]]]))


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("scheme", [*standard.SCHEMES, "mixed", None])
def test_every_scheme_equals_one_process(scheme: str | None, world: int) -> None:
    check(small.case(world, scheme))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"weighted": True}, id="weights"),
        pytest.param({"lookups": 2}, id="two lookups in a step"),
        pytest.param({"clip": 0.5}, id="the norm over all ranks is clipped"),
        pytest.param({"idless": [1]}, id="a rank without ids"),
        pytest.param({"sizes": [[[3, 1], [2, 2], [1, 0]]] * 2}, id="gradients of several batches"),
        pytest.param({"sizes": [[[0, 4]], [[0, 1]]]}, id="a rank without rows"),
        pytest.param({"collections": [["hashed", "wide"], ["item", "few"]], "ahead": True}, id="two collections"),
        pytest.param({"habit": "looks again"}, id="a lookup between forward and backward"),
        pytest.param({"habit": "trains without gradient"}, id="a lookup in training without a gradient"),
        pytest.param({"habit": "forgets"}, id="a lookup whose output is not used"),
        pytest.param({"habit": "weighs rows"}, id="rows have weights"),
    ],
)
def test_whatever_a_step_has_equals_one_process(more: dict[str, Any]) -> None:
    check(small.case(2, "mixed", **more))


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_equals_one_process(kind: str) -> None:
    optimizer, options = OPTIMIZERS[kind]
    check(small.case(2, "mixed", optimizer=optimizer, options=options))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [*standard.SCHEMES, "mixed"])
def test_every_scheme_of_the_standard_tables_equals_one_process(scheme: str) -> None:
    tables = [spec for spec in standard.TABLES if not spec.get("capacity")]
    check(standard.case(3, scheme, tables=tables, on_device=True))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [*standard.SCHEMES, "mixed"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_rows_are_equal_bit_for_bit_where_sums_are_exact(scheme: str, dtype: str) -> None:
    tables = [
        {"name": "a", "dim": 8, "rows": 9, "features": ["a", "b"], "combiner": "sum", "dtype": dtype},
        {"name": "c", "dim": 17, "rows": 30, "combiner": "sum", "dtype": dtype},
        {"name": "h", "dim": 3, "hashes": [2, 7], "combiner": "sum", "dtype": dtype},
    ]
    case = small.case(2, scheme, tables=tables, sizes=[[[4, 4]]] * 2, hot={"a": 2}, weighted=True)
    found, expected = pool(2).run("tests.parallel.jobs.exact:train", case=case.to_json()), train_alone(case)
    compare_stores([each["initial"] for each in found], expected["initial"], 0.0, "initial rows")
    for step, wanted in enumerate(expected["outputs"]):
        assert torch.equal(torch.cat([each["outputs"][step] for each in found]), wanted), f"outputs of step {step}"
    compare_stores([each["final"] for each in found], expected["final"], 0.0, "rows")
