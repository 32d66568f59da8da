"""Vectors and gradients of ranks on GPUs in half precision: close within it, and chosen apart."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel.equality import TRAIN, assembled
from tests.parallel.gpu import small
from tests.parallel.jobs.training import train_alone
from tests.parallel.pool import pool

pytestmark = [*needs_gpu, pytest.mark.slow]

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of a number that is rounded once


@pytest.mark.parametrize("kind", EPS)
@pytest.mark.parametrize("scheme", ["table", "row"])
def test_vectors_travel_in_the_type_of_the_forward_wire(scheme: str, kind: str) -> None:
    case = small.case(2, scheme, sizes=[[[3, 2]]], wire={"forward": kind})
    found, expected = pool(2).run(TRAIN, case=case.to_json()), train_alone(case)
    wanted = expected["steps"][0]["every"]
    off = (torch.cat([each["steps"][0]["every"] for each in found]) - wanted).abs().max()
    assert 0 < off <= 8 * EPS[kind] * wanted.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("kind", EPS)
@pytest.mark.parametrize("scheme", ["table", "row"])
def test_gradients_travel_in_the_type_of_the_gradient_wire(scheme: str, kind: str) -> None:
    case = small.case(2, scheme, sizes=[[[3, 2]]], wire={"gradient": kind})
    found, expected = pool(2).run(TRAIN, case=case.to_json()), train_alone(case)
    off = 0.0
    for name, want in expected["final"].items():
        moved = (want["rows"] - expected["initial"][name]["rows"]).abs().max()
        rows = assembled(name, [each["final"][name] for each in found], want)["rows"]
        differs = (rows - want["rows"]).abs().max()
        assert differs <= 2 * EPS[kind] * moved + 1e-6, f"table {name!r}"
        off = max(off, float(differs))
    assert off > 1e-6, "nothing was rounded on its way"
