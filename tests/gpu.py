"""What tests of GPU code share: they run on a card, or on the CPU through Triton's interpreter."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
IN_ORDER = INTERPRETED and not os.environ.get("HYBRIDREC_INTERLEAVED")  # whether programs run one after another
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
    """Its modules are searched for builtins once, and not at every call of a function: a third of all time.

    Nor does it compute for each sum whether that overflows, which it would tell in its debug mode alone.
    """
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
    options = interpreter.interpreter_builder.options
    if not options.debug:
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


if INTERPRETED:
    quicken_the_interpreter()
