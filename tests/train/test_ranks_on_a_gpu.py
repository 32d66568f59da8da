"""A Trainer over ranks that share a GPU: the same numbers as one process on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parallel.pool import pool
from tests.train import ranked
from tests.train.test_ranks import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FIXED = {"tables": {"*": {"rows": 64, "out_of_range": "zero"}}}
DYNAMIC: dict[str, Any] = {}  # as a model's tables are by themselves
CASES: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, FIXED, {}),
    (2, DYNAMIC, {}),
    (3, FIXED, {"weighted": True, "accumulate": 2, "clip_norm": 0.5}),
    (2, FIXED, {"kind": "twotower", "metrics": ["auc"]}),
]


@pytest.mark.parametrize(("world", "made", "options"), CASES, ids=str)
def test_many_ranks_on_a_gpu_train_validate_and_predict_as_one_process_does(world, made, options):
    alone = ranked.fitted(made=made, **options)
    found = pool(world).run("tests.train.ranked:fitted", made={**made, "device": "cuda"}, **options)
    for each in found:
        for part in ("weights", "scores", "evaluated", "rows"):
            assert_close(each[part], alone[part], 1e-3)
        for part in ("weights", "buffers"):
            assert_close(each[part], found[0][part], 0.0)
