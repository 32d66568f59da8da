"""Every launch of the loss compiles for a card, whatever is weighed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import INTERPRETED

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.bce.op import bce
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]


@pytest.mark.parametrize("shape", [(50,), (50, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("total", [50.0, torch.inf, torch.tensor(50.0)], ids=str)
def test_the_loss_compiles_both_ways(shape, weighted: bool, total, tmp_path: Path) -> None:
    rows, columns = (torch.ones(shape[0]), torch.ones(shape[-1])) if weighted else (None, None)
    with launches_only_compile(tmp_path) as compiled:
        x = torch.zeros(shape, requires_grad=True)
        bce(x, torch.zeros(shape), rows, columns if len(shape) == 2 else None, total).backward()
    assert compiled == {"bce_sums", "bce_total", "bce_gradient"}
