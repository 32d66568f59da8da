"""Random mixes of schemes, tables, batches and optimizers on a GPU: N ranks equal one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import INTERPRETED, needs_gpu
from tests.parallel.drawn import cases
from tests.parallel.equality import check
from tests.parallel.training_case import Case

pytestmark = [*needs_gpu, pytest.mark.slow]

EXAMPLES = 6 if INTERPRETED else 60


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_on_a_gpu_equal_one_process_whatever_the_mix(world: int) -> None:
    calm = [HealthCheck.too_slow, HealthCheck.data_too_large]
    search = settings(max_examples=EXAMPLES, suppress_health_check=calm, deadline=None)
    search(given(case=cases(world, most_tables=4))(check_on_device))()


def check_on_device(case: Case) -> None:
    check(replace(case, on_device=True))
