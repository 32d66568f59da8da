"""The models of the library: N ranks on slices of every global batch end where one process does."""

from __future__ import annotations

import pytest
import torch

from tests.models.clicks import CONFIGS
from tests.parallel.equality import CLOSE, compare_stores, same
from tests.parallel.jobs.zoo import train_alone
from tests.parallel.pool import pool

FAST = ("dlrm", "din")
MODELS = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "twotower"
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_models_of_the_library_end_where_one_process_does(name: str, world: int) -> None:
    found, wanted = pool(world).run("tests.parallel.jobs.zoo:train", name=name), train_alone(name)
    for step, expected in enumerate(wanted["outputs"]):
        same(torch.cat([each["outputs"][step] for each in found]), expected, CLOSE, f"outputs of step {step}")
    for each in found:
        for layer, expected in wanted["layers"].items():
            same(each["layers"][layer], expected, CLOSE, layer)
    compare_stores([each["final"] for each in found], wanted["final"], CLOSE, "rows")
