"""Constants of kernels: compiled ones are told apart by them."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

import hybridrec.ops
from hybridrec.ops.constants import constants
from hybridrec.ops.features import Of, of
from hybridrec.ops.pooled_lookup import triton as pooled_lookup

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles and keeps no kernels"
)


def kernels() -> Iterator[JITFunction]:
    for found in pkgutil.walk_packages(hybridrec.ops.__path__, "hybridrec.ops."):
        if "triton" in found.name:
            module = importlib.import_module(found.name)
            yield from (part for part in vars(module).values() if isinstance(part, JITFunction))


def of_modules(kernel: JITFunction) -> Iterator[tuple[str, Any]]:
    """What a kernel reads of modules that it names: all but Triton's own and other kernels."""
    for node in ast.walk(kernel.parse()):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = kernel.fn.__globals__.get(node.value.id)
            if isinstance(module, ModuleType) and not module.__name__.startswith("triton"):
                read = getattr(module, node.attr)
                if not isinstance(read, JITFunction):
                    yield f"{module.__name__}.{node.attr}", read


def test_a_kernel_for_other_constants_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    function = pooled_lookup.bag_ends.fn
    before = JITFunction(function).cache_key
    assert JITFunction(function).cache_key == before
    monkeypatch.setattr(pooled_lookup, "of", constants(Of(STRIDE=9, COLUMN=10)))
    assert JITFunction(function).cache_key != before


def test_no_kernel_reads_a_number_that_triton_does_not_see() -> None:
    found = list(kernels())
    assert len(found) > 40
    assert {kernel.__name__: list(of_modules(kernel)) for kernel in found if list(of_modules(kernel))} == {}


def test_a_launch_compares_few_constants_and_each_at_once() -> None:
    for kernel in kernels():
        assert kernel.cache_key
        compared = [value for value, _ in kernel.used_global_vals.values()]
        assert len(compared) <= 4, inspect.getsourcefile(kernel.fn)
        assert all(type(value).__ne__ is object.__ne__ for value in compared), kernel.__name__


def test_names_are_numbers_in_python_too() -> None:
    assert Of._fields.index("LENGTH") == of.LENGTH
    assert of._replace(LENGTH=3).LENGTH == 3
    with pytest.raises(AttributeError, match="LENGHT"):
        of.LENGHT  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
