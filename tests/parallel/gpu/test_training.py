"""The Trainer over ranks on a GPU: fit, evaluate, predict, checkpoints from any ranks to any others and to the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.train.checkpoint import Checkpoints, verify
from tests.gpu import needs_gpu
from tests.parallel.jobs import on_device
from tests.parallel.pool import pool

pytestmark = [*needs_gpu, pytest.mark.slow]

JOBS = "tests.parallel.jobs.on_device"


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[str, list[dict]]:
    """A run of two ranks, and what they say of it."""
    folder = str(tmp_path_factory.mktemp("two") / "run")
    return folder, pool(2).run(f"{JOBS}:fitted", folder=folder, on_device=True)


def test_two_ranks_on_a_gpu_train_evaluate_and_predict_as_one_process_does(two):
    alone = on_device.fitted(None, on_device=False)
    for each in two[1]:
        for name in ("losses", "evaluated"):
            assert each[name] == pytest.approx(alone[name], rel=1e-5, abs=1e-5)
        torch.testing.assert_close(each["scores"], alone["scores"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(each["weights"], alone["weights"], atol=1e-5, rtol=1e-5)


def test_what_two_ranks_have_saved_is_loaded_by_three_and_by_one_process_on_the_cpu(two):
    folder, said = two
    path = Checkpoints(f"{folder}/checkpoints").latest()
    assert path is not None
    assert verify(path) == []
    there = pool(3).run(f"{JOBS}:loaded", folder=folder, on_device=True)
    here = on_device.loaded(folder, on_device=False)
    for each in (*there, here):
        torch.testing.assert_close(each["scores"], said[0]["scores"], atol=1e-6, rtol=1e-6)
