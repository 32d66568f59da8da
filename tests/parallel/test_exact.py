"""Where sums are exact, N ranks and one process agree in every bit: rounding is keyed by the ids of the whole table."""

from __future__ import annotations

import pytest
import torch

from tests.parallel import standard
from tests.parallel.equality import compare_stores
from tests.parallel.jobs.exact import train_alone
from tests.parallel.pool import pool
from tests.parallel.training_case import Case, Spec

EXACT = "tests.parallel.jobs.exact:train"
WORLDS = [2, pytest.param(4, marks=pytest.mark.slow)]  # powers of two: shares are exact too


def equal(world: int) -> list[list[list[int]]]:
    """Batches of four rows on every rank."""
    return [[[4] * world]] * 4


def tables(dtype: str) -> list[Spec]:
    """Tables whose sums are exact: no division by the length of a bag."""
    return [
        {"name": "a", "dim": 8, "rows": 9, "features": ["a", "b"], "combiner": "sum", "dtype": dtype},
        {"name": "c", "dim": 17, "rows": 30, "combiner": "sum", "dtype": dtype},
        {"name": "d", "dim": 4, "capacity": 100, "combiner": "sum", "dtype": dtype},
        {"name": "h", "dim": 3, "hashes": [2, 7], "combiner": "sum", "dtype": dtype},
    ]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scheme", standard.ANY)
def test_rows_of_every_type_are_equal_bit_for_bit(scheme: str, dtype: str, world: int) -> None:
    case = standard.case(world, scheme, tables=tables(dtype), sizes=equal(world), hot={"a": 2}, weighted=True)
    _check(case)


@pytest.mark.parametrize("scheme", standard.ANY)
def test_state_beside_rows_of_half_precision_is_equal_bit_for_bit(scheme: str) -> None:
    options = {"lr": 0.25, "momentum": 0.5}
    _check(standard.case(2, scheme, tables=tables("bfloat16"), sizes=equal(2), optimizer="SGD", options=options))


def _check(case: Case) -> None:
    found, expected = pool(case.world).run(EXACT, case=case.to_json()), train_alone(case)
    compare_stores([each["initial"] for each in found], expected["initial"], 0.0, "initial rows")
    for step, wanted in enumerate(expected["outputs"]):
        assert torch.equal(torch.cat([each["outputs"][step] for each in found]), wanted), f"outputs of step {step}"
    compare_stores([each["final"] for each in found], expected["final"], 0.0, "rows")
