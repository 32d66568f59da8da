"""The benchmark of dynamic tables on a GPU answers on small tables without one; no time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")


@pytest.mark.slow
def test_ids_are_found_and_taken_in_at_every_load(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_gpu", "--smoke", "--only", "keys")
    assert list(answer["loads"]) == ["0.5", "0.75", "0.95"]
    assert all(sorted(each) == ["find_gkv_s", "insert_gkv_s", "slots_gkv_s"] for each in answer["loads"].values())
    found = {name: answer[name] for name in answer["goals"] if name in answer}
    assert sorted(found) == ["find_gkv_s", "insert_gkv_s"]
    assert found.items() <= answer["loads"]["0.75"].items()


@pytest.mark.slow
def test_steps_are_timed_with_all_rows_and_with_a_part_of_them_there(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_gpu", "--smoke", "--only", "tiered")
    assert sorted(answer["tiered"]["criteo"]) == ["hit_rate", "hot_ms", "tiered_ms", "tiered_warm"]
    assert answer["tiered_warm"] == answer["tiered"]["criteo"]["tiered_warm"]


@pytest.mark.slow
def test_steps_of_fixed_and_dynamic_tables_are_compared(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask("tiers_gpu", "--smoke", "--only", "steps")
    assert answer["dynamic_vs_fixed"] == answer["steps"]["dynamic_ms"] / answer["steps"]["fixed_ms"]
