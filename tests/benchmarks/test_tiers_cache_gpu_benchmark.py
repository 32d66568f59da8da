"""The benchmark of rows in two tiers answers on few rows without a GPU; no time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

MODULES = ("tiers_cache_gpu",)


def test_link_exchanges_admissions_and_a_warm_cache_have_figures(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_cache_gpu", "--smoke")
    assert len(answer["link_gb_s"]) == 2
    assert [each["row_bytes"] for each in answer["exchange_ms"].values()] == [516, 260, 260, 136]
    assert answer["admit_ms"]["1.0"]["moved"] > answer["admit_ms"]["0.2"]["moved"] > 0
    assert 0 < answer["warm"]["hit_rate"] < 1
    assert answer["warm"]["refused"] == 0


def test_ids_follow_a_power_law(modules: dict[str, ModuleType]) -> None:
    ranks = modules["tiers_cache_gpu"].power_law(20_000, 1000)
    assert (int(ranks.min()), bool((ranks < 1000).all())) == (0, True)
    assert (ranks < 10).sum() > 10 * ((ranks >= 500) & (ranks < 510)).sum()
