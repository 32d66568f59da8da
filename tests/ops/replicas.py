"""Loads that one warp of a program may make when another has already written there.

Where a layout has an element in several threads each of them loads it, and one stores it. Warps are not in step:
without a barrier between, one may load what another has stored, and go on with that. Neither the interpreter nor
racecheck, which looks at shared memory, can see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.ops.layouts import holders
from tests.ops.llir import Code
from tests.ops.ttgir import LOAD, WRITES, Access, Kernel, Source


def loads_at_risk(asm: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lines of a compiled kernel that load an element in one warp and write it in another, with no barrier between.

    Addresses are taken to be equal where both lines have the same expression for them.
    """
    kernel, code = Kernel(asm["ttgir"]), Code(asm["llir"])
    missing = [_line(each.source) for each in kernel.accesses if not code.has(each.source)]
    assert not missing, f"lines of TTGIR that LLVM's code does not have: {missing}"
    found = [
        (_line(load.source), _line(write.source))
        for load, write in _pairs(kernel)
        if _is_shared(load, write, kernel.warps)
        and not kernel.is_for_one_thread(load)
        and code.follows(write.source, load.source)
    ]
    return sorted(set(found))


def _pairs(kernel: Kernel) -> Iterator[tuple[Access, Access]]:
    """Loads, each with every write to the same address."""
    writes = [each for each in kernel.accesses if each.name in WRITES]
    for load in kernel.accesses:
        yield from ((load, each) for each in writes if load.name == LOAD and each.address == load.address)


def _is_shared(load: Access, write: Access, warps: int) -> bool:
    """Whether another warp than the one that writes an element, the first of those that hold it, loads it."""
    read, written = (holders(each.layout, each.shape, warps) for each in (load, write))
    return any(found != {min(written[place])} for place, found in read.items())


def _line(source: Source) -> str:
    """
    >>> _line((("search.py", 85, 4), ("evict.py", 180, 8)))
    'search.py:85 in evict.py:180'
    """
    return " in ".join(f"{file}:{line}" for file, line, _ in source)
