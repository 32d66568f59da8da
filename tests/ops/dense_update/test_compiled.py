"""Every rule of a dense update compiles for a card, and no warp loads a number that another has stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.dense_update.numbers import RULES, of
from hybridrec.ops.dense_update.triton import SIZE, update_parameters
from tests.gpu import INTERPRETED
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_parameters_take_their_step(rule: str, guarded: bool, tmp_path: Path) -> None:
    lines, programs = torch.zeros(1, of.LINE, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int32)
    with launches_only_compile(tmp_path) as compiled:
        given = lines, programs, torch.zeros(()), *(0.5,) * 7
        update_parameters[(1,)](*given, RULE=RULES[rule], GUARDED=guarded, SIZE=SIZE)
    assert compiled == {"update_parameters"}
