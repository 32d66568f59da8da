"""What launches leave behind where they break off: memory that kernels take for zeros is zeros again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torch import Tensor


@contextmanager
def zeros_again(*parts: Tensor) -> Iterator[None]:
    """Within it launches use memory that is zeros, and is to be so for the next ones, whatever becomes of these.

    Ctrl-C, or a card with no room for a kernel that is new, comes between two launches, of which the second would
    have cleared what the first has written.

    >>> import torch
    >>> sums = torch.zeros(2)
    >>> try:
    ...     with zeros_again(sums):
    ...         sums += 1
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt:
    ...     print(sums)
    tensor([0., 0.])
    """
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # of a card that does nothing any more: what was raised says why
            for part in parts:
                part.zero_()
        raise
