"""The planner's benchmark answers on few cases; no time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_it_prints_its_figures_as_json(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("planner", "--quick")
    assert 0.999 <= answer["planner_gap"] <= 1.05
    assert answer["plan_seconds"] > 0
    assert answer["large"]["devices"] == 8
