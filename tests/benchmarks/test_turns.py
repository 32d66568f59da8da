"""Jobs of benchmarks take turns, each in a process of its own."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest

MODULES = ("turns",)


def test_passes_take_turns_and_a_failure_is_not_tried_again(modules: dict[str, ModuleType]) -> None:
    turns, seen = modules["turns"], []

    def run(job: str) -> dict[str, Any]:
        seen.append(job)
        if job == "b":
            raise turns.Failed("no port")
        return {"rows_per_s": 1.0}

    passes, failed = turns.take_turns({"one": "a", "two": "b", "three": "c"}, 2, run, str)
    assert seen == ["a", "b", "c", "c", "a"]
    assert failed == {"two": "no port"}
    assert {name: len(found) for name, found in passes.items()} == {"one": 2, "three": 2}


@pytest.mark.parametrize(
    ("code", "reason"), [("print('hello')", "status 0: it said nothing"), ("exit('broken')", "status 1: broken")]
)
def test_a_process_without_an_answer_says_why(modules: dict[str, ModuleType], code: str, reason: str) -> None:
    turns = modules["turns"]
    with pytest.raises(turns.Failed, match=reason):
        turns.answer_of([sys.executable, "-c", code], dict(os.environ))


def test_the_answer_of_a_process_is_the_marked_line(modules: dict[str, ModuleType]) -> None:
    code = "import os; print('hello'); print('@{\"threads\": ' + os.environ['OMP_NUM_THREADS'] + '}'); print('bye')"
    turns = modules["turns"]
    assert turns.answer_of([sys.executable, "-c", code], turns.environment_of(3, steady=False)) == {"threads": 3}
