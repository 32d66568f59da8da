"""Ids that find their rows by hashing: outside of a table, or of a table with several hashes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import MultiHash
from hybridrec.types import IdBlock, Ragged
from tests.embedding.gpu.on_device import QUICK, Pair, ids, lists, weighted
from tests.gpu import needs_gpu

pytestmark = needs_gpu

OUTSIDE = [
    hr.Table("a", dim=8, rows=9, out_of_range="hash", features=["a", "a_max"], combiner={"a": "sum", "a_max": "max"}),
    hr.Table("b", dim=5, rows=30, combiner="mean", out_of_range="zero"),
    hr.Table("c", dim=5, rows=7, combiner="none", out_of_range="hash"),
]
COMBINER = {"m": "mean", "m_sqrtn": "sqrtn", "m_seq": "none"}
SEVERAL = [
    hr.Table("m", dim=8, hashes=MultiHash(rounds=3, size=11), features=list(COMBINER), combiner=COMBINER),
    hr.Table("b", dim=8, rows=30, features=["b", "b_seq"], combiner={"b": "mean", "b_seq": "none"}),
]


def anywhere(given: torch.Tensor | Ragged) -> torch.Tensor | Ragged:
    """Some ids of a feature replaced by ids far outside any table."""
    values = given.values if isinstance(given, Ragged) else given
    far = torch.randint(-(2**62), 2**62, values.shape)
    values.copy_(torch.where(torch.rand(values.shape) < 0.5, far, values))
    return given


def outside(batch: int) -> dict:
    given = {"a": ids(9, batch), "a_max": lists(9, 3, batch), "b": ids(30, batch, 2), "c": lists(7, 2, batch)}
    return {name: anywhere(part) for name, part in given.items()}


def several(batch: int) -> dict:
    given = {"m": ids(9, batch, 2), "m_sqrtn": lists(9, 3, batch), "m_seq": lists(9, 2, batch)}
    return {**{n: anywhere(p) for n, p in given.items()}, "b": lists(30, 3, batch), "b_seq": ids(30, batch)}


@pytest.mark.parametrize(("tables", "features"), [(OUTSIDE, outside), (SEVERAL, several)])
def test_steps_are_those_of_the_cpu(tables, features):
    torch.manual_seed(0)
    pair = Pair(tables, lambda m: hr.optim.Adagrad(m, lr=0.1), QUICK)
    for batch, make in ((5, IdBlock.from_ragged), (4, weighted)):
        pair.backward(make(features(batch)))
        pair.step()
        pair.agree()


@pytest.mark.parametrize(("tables", "features"), [(OUTSIDE, outside), (SEVERAL, several)])
def test_two_calls_before_a_step_make_one_update(tables, features):
    torch.manual_seed(1)
    pair = Pair(tables, lambda m: hr.optim.Adam(m, lr=0.1), QUICK)
    for batch in (3, 4):
        pair.backward(weighted(features(batch)))
    pair.step()
    pair.agree()


@pytest.mark.parametrize(("tables", "features"), [(OUTSIDE, outside), (SEVERAL, several)])
def test_a_batch_without_rows_does_nothing(tables, features):
    pair = Pair(tables, lambda m: hr.optim.SGD(m, lr=0.1), QUICK)
    pair.backward(IdBlock.from_ragged(features(0)))
    pair.step()
    pair.agree(atol=0.0)


def test_the_ids_given_stay_as_they_are():
    pair = Pair(OUTSIDE, lambda m: hr.optim.SGD(m, lr=0.1), QUICK)
    block = IdBlock.from_ragged(outside(3))
    before = block.values.clone()
    pair.outputs(block)
    assert torch.equal(block.values, before)
