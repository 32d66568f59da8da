"""Every launch compiles for a card, at any number of columns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hybridrec.ops.running_norm.reference import Moments
from tests.gpu import INTERPRETED

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.running_norm.triton import count_in, normalised
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]


@pytest.mark.parametrize("columns", [1, 13, 128])
def test_counting_and_normalising_compile(columns: int, tmp_path: Path) -> None:
    known = Moments(*(torch.zeros(columns, dtype=torch.float64) for _ in range(3)))
    with launches_only_compile(tmp_path) as compiled:
        count_in(torch.zeros(50, columns), known)
        normalised(torch.zeros(50, columns), known, 1e-6, 10.0)
    assert compiled == {"tile_moments", "merge_moments", "normalise"}
