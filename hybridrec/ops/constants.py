"""Numbers that kernels know by name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, TypeVar, cast

Named = TypeVar("Named", bound=tuple)


def constants(named: Named) -> Named:
    """The values of a NamedTuple for kernels, and for Python as well; without Triton, the NamedTuple itself.

    >>> from typing import NamedTuple
    >>> class Line(NamedTuple):
    ...     START: int = 0
    ...     COUNT: int = 1
    >>> constants(Line()).COUNT
    1
    """
    if find_spec("triton") is None:  # a torch for CPUs comes without it, and nothing but kernels needs it
        return named
    from hybridrec.ops.constexpr import Constants

    return cast(Any, Constants(named))
