"""Tables of few rows, whose gradients are summed without grouping, beside others that are grouped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Uniform
from hybridrec.ops.row_sums import triton as row_sums
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import SUMMED, Pair, ids, lists, weighted
from tests.gpu import needs_gpu

pytestmark = needs_gpu

COMBINER = {"a": "sum", "a_mean": "mean", "a_max": "max", "a_seq": "none"}
TABLES = [
    hr.Table("a", dim=8, rows=20, features=list(COMBINER), combiner=COMBINER),  # more than the sums of one program
    hr.Table("b", dim=8, rows=40, combiner="sqrtn"),  # grouped, in the class of a
    hr.Table("c", dim=5, rows=12, combiner="sqrtn", out_of_range="hash"),
    hr.Table("d", dim=8, rows=3),
]
OPTIMIZERS = {
    "momentum": lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda m: hr.optim.Adagrad(m, lr=0.1, clip_row_norm=0.5),
    "adam": lambda m: hr.optim.Adam(m, lr=0.1),
}


def features(batch: int) -> dict:
    of_a = {"a": ids(20, batch, 2), "a_mean": lists(20, 3, batch), "a_max": ids(20, batch, 2)}
    others = {"b": lists(40, 3, batch), "c": ids(1000, batch, 3), "d": ids(3, batch)}
    return {**of_a, "a_seq": lists(20, 2, batch), **others}


@pytest.mark.parametrize("kind", ["momentum", "adagrad"])  # the rule is that of grouped rows
def test_steps_are_those_of_the_cpu(kind):
    torch.manual_seed(0)
    pair = Pair(TABLES, OPTIMIZERS[kind], SUMMED)
    pair.backward(IdBlock.from_ragged(features(6)))
    pair.step()
    pair.agree()


def test_several_programs_of_a_feature_add_their_sums(monkeypatch):
    monkeypatch.setattr(row_sums, "NUMBERS", 16)
    monkeypatch.setattr(row_sums, "TILES", 2)
    torch.manual_seed(1)
    pair = Pair(TABLES, OPTIMIZERS["adagrad"], SUMMED)
    for batch in (5, 3):
        pair.backward(weighted(features(batch)))
        pair.step()
        pair.agree()


def test_collections_without_a_table_that_is_grouped_take_their_steps():
    torch.manual_seed(2)
    pair = Pair(TABLES[2:], OPTIMIZERS["adam"], SUMMED)
    pair.backward(IdBlock.from_ragged(features(5)))
    pair.step()
    pair.agree()


def test_rows_that_no_id_leads_to_stay_as_they_are():
    """Momentum and weight decay would move them."""
    torch.manual_seed(3)
    pair = Pair(TABLES[2:], OPTIMIZERS["momentum"], SUMMED)
    for batch in (4, 2):
        pair.backward(IdBlock.from_ragged({"c": ids(12, batch), "d": torch.full((batch,), batch // 4)}))
        pair.step()
        pair.agree()


def test_the_norm_of_all_gradients_is_that_of_the_cpu_and_clips():
    torch.manual_seed(4)
    pair = Pair(TABLES, OPTIMIZERS["momentum"], SUMMED)
    pair.backward(IdBlock.from_ragged(features(5)))
    norms = [hr.optim.clip_grad_norm_([], rows, 0.5) for rows in pair.optimizers]
    assert norms[0] == pytest.approx(float(norms[1]), rel=1e-5)
    pair.step()
    pair.agree()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_only_the_row_whose_gradient_is_not_finite_is_left_out_and_counted(value):
    pair = Pair(TABLES[2:], OPTIMIZERS["adagrad"], SUMMED)
    flat, _ = pair.gpu(IdBlock.from_ragged({"c": torch.tensor([1, 2, 2]), "d": torch.tensor([0, 1, 1])}))
    weight = torch.ones_like(flat)
    weight[0, 0] = value  # of row 1 of table c
    (flat * weight).sum().backward()
    pair.optimizers[1].step()
    rows, before = pair.gpu.stores["c"].weight.cpu(), pair.cpu["c"].weight
    assert [bool((rows[k] != before[k]).any()) for k in (1, 2)] == [False, True]
    assert pair.gpu.stores["c"].counters() == {"nan_rows": 1}
    assert pair.gpu.stores["d"].counters() == {"nan_rows": 0}
    assert not any(part.any() for part in pair.gpu.group._partial.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_rows_are_rounded_as_on_the_cpu_bit_for_bit(dtype):
    """Numbers of few bits, so that float32 is exact, and a step far below the distance of two half numbers."""
    torch.manual_seed(5)
    tables = [replace(TABLES[2], dtype=dtype, init=Uniform(1.0), combiner="sum"), replace(TABLES[3], init=Uniform(1.0))]
    pair = Pair(tables, lambda m: hr.optim.SGD(m, lr=2.0**-12), SUMMED)
    pair.backward(IdBlock.from_ragged({"c": ids(12, 9, 2), "d": ids(3, 9)}), exact=True)
    pair.step()
    for name, store in pair.gpu.stores.items():
        assert torch.equal(store.weight.cpu().view(torch.uint8), pair.cpu[name].weight.view(torch.uint8))


def test_ids_without_a_row_and_batches_without_ids_do_nothing():
    pair = Pair([replace(TABLES[3], out_of_range="zero")], OPTIMIZERS["momentum"], SUMMED)
    for given in (torch.tensor([-1, 3, 2**40]), torch.zeros(0).long(), torch.zeros(2, 0).long()):
        pair.backward(IdBlock.from_ragged({"d": given}))
        pair.step()
        pair.agree(atol=0.0)
        assert torch.equal(pair.gpu.stores["d"].weight.cpu(), hr.EmbeddingCollection([TABLES[3]], seed=3)["d"].weight)
