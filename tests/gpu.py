"""What tests of GPU code share: they run on a card, or on the CPU through Triton's interpreter."""

from __future__ import annotations

import functools
import inspect
import os
import random
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu") if INTERPRETED else torch.device("cuda", 0)

needs_gpu = [
    pytest.mark.filterwarnings(
        "ignore:.*encountered in:RuntimeWarning"
    ),  # numpy under the interpreter, on masked lanes
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (INTERPRETED or torch.cuda.is_available()),
        reason="needs a CUDA device, or TRITON_INTERPRET=1 as tests/test_interpreted.py sets it",
    ),
]


def wait_for_the_device() -> None:
    """Until all that was launched on it is done: then whoever waits for nothing knows what came of it."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def quicken_the_interpreter() -> None:
    """Its modules are searched for builtins once, and not at every call of a function: a third of all time."""
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    @functools.cache
    def builtins_of(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(package):
            if is_builtin(member := getattr(package, name)):  # not yet patched
                interpreter._patch_attr(package, name, member, builder, scope)

    if hasattr(interpreter, "_patch_builtin"):
        interpreter._patch_builtin = patch


def shuffle_programs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The interpreter runs the programs of each launch in an order of their own: by itself, it takes them in turn."""
    from triton.runtime.interpreter import InterpreterBuilder

    set_dim, set_at = InterpreterBuilder.set_grid_dim, InterpreterBuilder.set_grid_idx
    chance, order = random.Random(seed), []

    def begin(builder: Any, x: int, y: int, z: int) -> None:
        set_dim(builder, x, y, z)
        order[:] = chance.sample(range(x), x)

    monkeypatch.setattr(InterpreterBuilder, "set_grid_dim", begin)
    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", lambda self, x, y, z: set_at(self, order[x], y, z))


if INTERPRETED:
    quicken_the_interpreter()
