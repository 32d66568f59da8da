"""Vectors and gradients that travel in half precision: close within it, and chosen apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parallel import standard
from tests.parallel.equality import TRAIN, assembled
from tests.parallel.jobs.training import train_alone
from tests.parallel.pool import pool
from tests.parallel.training_case import Case

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of a number that is rounded once
KINDS = ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
ONE_STEP = [[[5, 3]]]
SPREAD = ("table", "row", "column")  # schemes in which vectors travel


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SPREAD)
def test_vectors_travel_in_the_type_of_the_forward_wire(scheme: str, kind: str) -> None:
    found, expected = _ran(standard.case(2, scheme, sizes=ONE_STEP, wire={"forward": kind}))
    outputs, wanted = _outputs(found), expected["steps"][0]["every"]
    off = (outputs - wanted).abs().max()
    assert 0 < off <= 8 * EPS[kind] * wanted.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SPREAD)
def test_gradients_travel_in_the_type_of_the_gradient_wire(scheme: str, kind: str) -> None:
    found, expected = _ran(standard.case(2, scheme, sizes=ONE_STEP, wire={"gradient": kind}))
    torch.testing.assert_close(_outputs(found), expected["steps"][0]["every"], rtol=1e-6, atol=1e-6)
    off = 0.0
    for name, want in expected["final"].items():
        moved = (want["rows"] - _initial(expected, name)).abs().max() if len(want["ids"]) else torch.tensor(0.0)
        rows = assembled(name, [each["final"][name] for each in found], want)["rows"]
        differs = (rows - want["rows"]).abs().max()
        assert differs <= 2 * EPS[kind] * moved + 1e-7, f"table {name!r}"
        off = max(off, float(differs))
    assert off > 1e-7, "nothing was rounded on its way"


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_a_replicated_table_stay_equal_in_every_bit(kind: str) -> None:
    case = standard.case(3, "replicated", wire={"forward": kind, "gradient": kind})
    found, expected = _ran(case)
    for name, want in expected["final"].items():
        assembled(name, [each["final"][name] for each in found], want)  # asserts that the copies are equal


def _ran(case: Case) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return pool(case.world).run(TRAIN, case=case.to_json()), train_alone(case)


def _outputs(found: list[dict[str, Any]]) -> torch.Tensor:
    return torch.cat([each["steps"][0]["every"] for each in found])


def _initial(expected: dict[str, Any], name: str) -> torch.Tensor:
    before, after = expected["initial"][name], expected["final"][name]
    return before["rows"] if len(before["ids"]) == len(after["ids"]) else torch.zeros_like(after["rows"])
