"""Gradients of weights compile for a card, and threads that hold the same sum do not all write it to shared memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import triton.language as tl

from hybridrec.ops.pooled_lookup.triton import ELEMENTS
from hybridrec.ops.pooled_lookup.triton_weights import weigh_bags
from tests.gpu import INTERPRETED
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

# A sum over the numbers of a row is held by all threads of that row; a tensor that gets another layout is written by
# each thread that holds it. `racecheck` takes that for a race, though they write the same.
OF_SUMS = re.compile(r"convert_layout .*#ttg\.slice<.*-> tensor<[^#]*#blocked\d*>")


@pytest.mark.parametrize("of_max", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 5, 8, 16, 128])
def test_sums_over_rows_keep_their_layout(dim: int, of_max: bool, tmp_path: Path) -> None:
    width, align = 1 << (dim - 1).bit_length(), 4 if dim % 4 == 0 else 1
    ids, lines, numbers = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.int64), torch.zeros(64)
    winners = torch.zeros(64, dtype=torch.int32)
    given = ids, ids, numbers, lines, numbers, winners, numbers, numbers, numbers, 0, 5, 1, 0
    shape = {"ROW": tl.float32, "D": dim, "WIDTH": width, "BAGS": max(1, ELEMENTS // width), "ALIGN": align}
    with launches_only_compile(tmp_path):
        weigh_bags[(1,)](*given, **shape, MAX=of_max, num_warps=2)
    (text,) = [file.read_text() for file in tmp_path.rglob("*.ttgir")]
    assert "convert_layout" in text
    assert not OF_SUMS.findall(text)
