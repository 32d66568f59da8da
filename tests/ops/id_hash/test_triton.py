from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding import MultiHash, id_hash, multi_hash
from hybridrec.ops.id_hash import triton
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

EXTREMES = torch.tensor([0, 1, -1, 7, 2**31, 2**32, 2**63 - 1, -(2**63)])


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_hashes_are_those_of_the_cpu_bit_for_bit(count):
    ids = torch.cat([torch.randint(-(2**63), 2**63 - 1, (count,)), EXTREMES])
    assert torch.equal(triton.hash_ids(ids.to(DEVICE)).cpu(), id_hash.hash_ids(ids))


@pytest.mark.parametrize("size", [1, 10, 2**31 + 11])
def test_rows_of_several_hashes_are_those_of_the_cpu(size):
    ids = torch.cat([torch.randint(-(2**63), 2**63 - 1, (100,)), EXTREMES])
    expected = multi_hash.rows_of(ids, MultiHash(rounds=3, size=size))
    assert torch.equal(triton.hashed_blocks(ids.to(DEVICE), 3, size).cpu(), expected)


def test_no_ids_have_no_rows():
    assert triton.hashed_blocks(EXTREMES[:0].to(DEVICE), 2, 5).shape == (0, 2)
