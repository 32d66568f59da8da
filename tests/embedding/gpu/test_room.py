"""Lookups that leave room behind their vectors, on the GPU or through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

import hybridrec as hr
from hybridrec.ops.room import join
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import QUICK, Pair, ids, lists
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu


def pair_with_room(tables: list[hr.Table], room: int) -> Pair:
    pair = Pair(tables, lambda owner: hr.optim.Adagrad(owner, lr=0.1), QUICK)
    pair.gpu._look_up = pair.gpu.group.lookup_fn(pair.cpu._features, room=room)
    return pair


@pytest.mark.parametrize("combiners", [("mean", "sum"), ("max", "none")])
def test_numbers_beside_vectors_change_neither_them_nor_their_gradients(combiners):
    torch.manual_seed(0)
    tables = [
        hr.Table("a", dim=8, rows=30, combiner=combiners[0]),
        hr.Table("b", dim=4, rows=20, combiner=combiners[1]),
    ]
    pair = pair_with_room(tables, room=3)
    for _ in range(2):
        block = IdBlock.from_ragged({"a": ids(30, 9), "b": lists(20, 4, 9)})
        wanted, got = pair.outputs(block)
        assert got[0].stride() == (16, 1)
        numbers = torch.randn(9, 3)
        joined = join(got[0], numbers.to(DEVICE))
        assert joined is not None
        expected = torch.cat([wanted[0], numbers], 1)
        width = expected.shape[1]
        torch.testing.assert_close(joined[:, :width].cpu(), expected, atol=1e-5, rtol=1e-5)
        assert not joined[:, width:].any()
        factors = torch.randn(9, 16)
        ((expected * factors[:, :width]).sum() + sum(part.sum() for part in wanted[1:])).backward()
        ((joined * factors.to(DEVICE)).sum() + sum(part.sum() for part in got[1:])).backward()
        pair.step()
        pair.agree()


def test_gradients_of_vectors_without_numbers_are_laid_where_kernels_read_them():
    torch.manual_seed(1)
    pair = pair_with_room([hr.Table("a", dim=8, rows=30), hr.Table("b", dim=4, rows=20)], room=0)
    for _ in range(2):
        pair.backward(IdBlock.from_ragged({"a": ids(30, 9), "b": ids(20, 9)}))
        pair.step()
    pair.agree()
