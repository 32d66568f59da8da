"""Which warps of a program hold an element of a tensor, by the layout that Triton's compiler has given it.

A layout says how far each bit of the number of a register, a lane and a warp moves a place. Threads whose numbers
differ in a bit that moves nothing hold the same elements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

Place = tuple[int, ...]


class Layout(NamedTuple):
    """How far bits move a place: those of registers and lanes, and those of warps."""

    inside: list[Place]
    warps: list[Place]


def holders(text: str, shape: Sequence[int], warps: int) -> dict[Place, set[int]]:
    """The warps that hold each element of a tensor whose layout reads so; a scalar has none, and all of them hold it.

    >>> layout = "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [2], order = [0]}>"
    >>> holders(layout, [64], 2)[(40,)], holders(layout, [32], 2)[(4,)], holders("", [], 2)
    ({1}, {0, 1}, {(): {0, 1}})
    """
    if not text:
        return {(): set(range(warps))}
    layout = read(text, list(shape))
    found: dict[Place, set[int]] = {}
    places = set(_reached(layout.inside, len(shape)))
    for warp, begin in enumerate(_reached(layout.warps, len(shape))):
        for place in places:
            found.setdefault(_moved(begin, place), set()).add(warp)
    return found


def read(text: str, shape: list[int]) -> Layout:
    """The layout of a tensor with this shape."""
    found = re.fullmatch(r"#ttg\.(blocked|slice|linear)<\{(.*)\}>", text)
    assert found is not None, f"a layout of another kind than those that are known here: {text}"
    return {"blocked": _blocked, "slice": _slice, "linear": _linear}[found[1]](found[2], shape)


def _lists(text: str) -> dict[str, list]:
    return {name: json.loads(numbers) for name, numbers in re.findall(r"(\w+) = (\[[\[\]\d, ]*\])", text)}


def _linear(text: str, shape: list[int]) -> Layout:
    bits = {name: [tuple(place) for place in places] for name, places in _lists(text).items()}
    return Layout(bits["register"] + bits["lane"], bits["warp"])


def _blocked(text: str, shape: list[int]) -> Layout:
    """Registers, then lanes, then warps, side by side; registers again where the tensor is larger."""
    sizes, reach = _lists(text), [1] * len(shape)
    parts: list[list[Place]] = []
    for counts in (sizes["sizePerThread"], sizes["threadsPerWarp"], sizes["warpsPerCTA"]):
        parts.append([step for dim in sizes["order"] for step in _steps(dim, reach[dim], counts[dim], shape)])
        reach = [before * count for before, count in zip(reach, counts, strict=True)]
    again = [step for dim, size in enumerate(shape) for step in _steps(dim, reach[dim], size // reach[dim], shape)]
    return Layout(parts[0] + parts[1] + again, parts[2])


def _steps(dim: int, begin: int, count: int, shape: Sequence[int]) -> list[Place]:
    """The bits of a number below `count` along one dimension: none of them moves beyond the tensor."""
    distances = [begin << bit for bit in range(max(count, 1).bit_length() - 1)]
    return [tuple(d if at == dim and d < shape[dim] else 0 for at in range(len(shape))) for d in distances]


def _slice(text: str, shape: list[int]) -> Layout:
    """A layout with one dimension more: who holds some element along that holds what is left of it."""
    number, parent = re.fullmatch(r"dim = (\d+), parent = (.*)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    dim = int(number)
    whole = read(parent, [*shape[:dim], 1, *shape[dim:]])
    return Layout(*([(*place[:dim], *place[dim + 1 :]) for place in part] for part in whole))


def _moved(place: Place, by: Place) -> Place:
    return tuple(a ^ b for a, b in zip(place, by, strict=True))


def _reached(steps: Sequence[Place], dims: int) -> list[Place]:
    """The places of all numbers that have these bits, in their order."""
    found: list[Place] = [(0,) * dims]
    for step in steps:
        found += [_moved(place, step) for place in found]
    return found
