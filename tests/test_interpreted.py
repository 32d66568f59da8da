"""GPU kernels agree with the CPU under Triton's interpreter."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.interpreted import RANKS_AND_HOSTS, Interpreted

pytest.importorskip("triton", reason="the interpreter comes with triton")


@pytest.mark.timeout(3600)  # each of those tests has its own
def test_gpu_kernels_agree_with_the_cpu_under_the_interpreter(kernels: Interpreted):
    assert kernels.failures() == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)  # each of those tests has its own
def test_ranks_on_gpus_and_tables_beside_them_agree_with_the_cpu_under_the_interpreter():
    with closing(Interpreted(*RANKS_AND_HOSTS)) as run:
        assert run.failures() == ""
