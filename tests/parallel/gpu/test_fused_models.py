"""Models with nn.Embedding and nn.EmbeddingBag inside, fused on a GPU and sharded over ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.gpu import small
from tests.parallel.test_fused_models import TABLES, fused
from tests.parallel.training_case import Spec

pytestmark = needs_gpu

PADDED: list[Spec] = [spec | {"padding_idx": 2} for spec in TABLES if spec["combiner"] != "max"]


def check_fused(scheme: str | None, tables: list[Spec] = TABLES, world: int = 2, **more: Any) -> list[dict[str, Any]]:
    sizes = standard.sizes(world, small.SIZES)
    return check(fused(world, scheme, tables, on_device=True, **{"sizes": sizes, "longest": 3, **more}))


def test_a_fused_model_with_padding_on_two_ranks_ends_where_one_process_does() -> None:
    check_fused("mixed", PADDED[:2], sizes=[[[2, 3]]], optimizer="Adagrad", options={"lr": 0.2, "eps": 1e-3})


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [*standard.ANY, None])
def test_every_scheme_of_a_fused_model_equals_one_process(scheme: str | None) -> None:
    check_fused(scheme)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", standard.ANY)
def test_the_row_of_padding_stays_as_it_is(scheme: str) -> None:
    for each in check_fused(scheme, PADDED):
        for name, before in each["initial"].items():
            here = before["ids"] == 2
            assert bool((before["rows"][here] == each["final"][name]["rows"][here]).all())


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"learned": True}, {"hot": {}, "weighs": True}, {"clip": 0.05, "world": 3}], ids=str)
def test_whatever_a_step_has_equals_one_process(more: dict[str, Any]) -> None:
    check_fused("row", **more)
