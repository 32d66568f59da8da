"""Every launch of cross layers compiles for a card, whatever their type and kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hybridrec.ops.crosses.reference import Cross
from tests.gpu import INTERPRETED

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.crosses.op import crosses
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

PASSES = {"cross", "cross_backward", "cross_backward_x0"}


@pytest.mark.parametrize(
    ("kind", "width", "ranks", "turns"),
    [
        (torch.float32, 272, (256, 16), True),
        (torch.float32, 272, (None,), False),
        (torch.bfloat16, 272, (16, None), False),
        (torch.float16, 7, (3,), False),
    ],
    ids=str,
)
def test_layers_compile_both_ways(kind: torch.dtype, width: int, ranks, turns: bool, tmp_path: Path) -> None:
    def leaf(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=kind, requires_grad=True)

    layers = [Cross(leaf(width, r or width), leaf(width), None if r is None else leaf(r, width)) for r in ranks]
    with launches_only_compile(tmp_path) as compiled:
        crosses(torch.zeros(9, width, requires_grad=True), layers).sum().backward()
    assert compiled == (PASSES | {"turn"} if turns else PASSES)
