"""Numbers among the globals of a kernel. This needs Triton."""

from __future__ import annotations

from typing import Any

import triton.language as tl


class Constants(tl.constexpr):
    """A NamedTuple as kernels read it, by its names.

    Triton keeps compiled kernels by the text of their functions and by the constants among their globals: all values
    of the tuple, since it is one of these. The attributes of a module are not, so a kernel that read them there would
    be run on with values that have changed. And at every launch the globals are compared: one of these is compared as
    an object, not number by number.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["value"], name)

    def __deepcopy__(self, memo: Any) -> Constants:
        return self

    __eq__: Any = object.__eq__
    __ne__: Any = object.__ne__
    __hash__: Any = object.__hash__
