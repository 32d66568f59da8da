"""Kernels compiled for a card that is not there: the interpreter takes what the compiler may refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ops.replicas import loads_at_risk


class Nowhere:
    """What Triton asks a driver before it compiles; the number of the card is one that no real one has."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return -self._capability  # by which Triton keeps what it has compiled in this process

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def launches_only_compile(cache: Path, capability: int = 90) -> Iterator[set[str]]:
    """Launches compile for sm_90 or another card, by the types and alignment of what they are given, and run nothing.

    A kernel in which one warp may load what another has stored is an error (`replicas.py`). Gives the names so far.
    """
    from triton import knobs
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import JITFunction, driver

    compiled: set[str] = set()
    run = JITFunction.run

    def compile(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled.add(self.fn.__name__)
        made: Any = run(self, *args, grid=grid, warmup=True, **options)
        risks = loads_at_risk(made.asm)
        assert not risks, f"{self.fn.__name__}: warps may load what another has stored, lines of both: {risks}"
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", compile)
        patch.setattr(driver, "_active", Nowhere(capability))
        patch.setattr(CUDABackend, "make_cubin", lambda *_: b"")  # of code that LLVM has made
        patch.setattr(knobs.cache, "dir", str(cache))
        yield compiled
