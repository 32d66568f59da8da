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
SANITIZED = os.environ.get("HYBRIDREC_SANITIZED") == "1"  # as tests/sanitized_gpu.py sets it
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


captures = pytest.mark.skipif(
    INTERPRETED or SANITIZED,
    reason="graphs are of CUDA, and nothing is allocated anew while one is captured, as it is under the sanitizer",
)


not_sanitized = pytest.mark.skipif(SANITIZED, reason="it has the driver say what is wrong, which the sanitizer reports")


def scaled(few: int, many: int) -> int:
    """A size of a test: `few` under the interpreter, `many` on a card, and between them under the sanitizer."""
    if INTERPRETED:
        return few
    return max(few, many // 50) if SANITIZED else many


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


def let_numbers_be_indices() -> None:
    """Triton 3.6 makes an index of an array that has one number, which numpy no longer does."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched


if INTERPRETED:
    quicken_the_interpreter()
    let_numbers_be_indices()
