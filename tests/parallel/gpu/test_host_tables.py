"""Ranks with tables on GPUs and on their hosts equal one process on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.gpu import small
from tests.parallel.training_case import Case, Spec

pytestmark = needs_gpu

DYNAMIC: Spec = {"name": "user", "dim": 4, "capacity": 200, "features": ["user", "friends"], "combiner": "sum"}
HOSTED = ("wide", "item")


def case(world: int, scheme: str, **more: Any) -> Case:
    """Some tables on the device, others on the host by the plan, and a dynamic one that says so itself."""
    tables = [*small.TABLES, {**DYNAMIC, "where": "host"}]
    placements = [standard.placed(spec, scheme, world, n) for n, spec in enumerate(tables)]
    hosted = {name: {"where": "host"} for name in (*HOSTED, "user")}
    placements = [each | hosted.get(each["table"], {}) for each in placements]
    return small.case(world, scheme, tables=tables, placements=placements, **more)


def test_tables_on_hosts_beside_gpus_equal_one_process() -> None:
    check(case(2, "mixed", ahead=True, optimizer="Adagrad", options={"lr": 0.1}))


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("scheme", [*standard.SCHEMES, "mixed"])
def test_every_scheme_has_tables_on_hosts(scheme: str, world: int) -> None:
    check(case(world, scheme))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"weighted": True, "learned": True}, id="weights that take a gradient"),
        pytest.param({"lookups": 2, "clip": 0.5}, id="two lookups and the norm over all"),
        pytest.param({"sizes": [[[3, 1], [2, 2]]] * 2}, id="gradients of several batches"),
        pytest.param({"sizes": [[[0, 4]], [[0, 1]]]}, id="a rank without rows"),
        pytest.param({"habit": "looks again"}, id="a lookup between forward and backward"),
        pytest.param({"habit": "forgets"}, id="a lookup whose output is not used"),
    ],
)
def test_whatever_a_step_has_it_has_with_tables_on_hosts(more: dict[str, Any]) -> None:
    check(case(2, "mixed", **more))
