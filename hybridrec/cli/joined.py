"""A command on many ranks: they join, and what one of them says is marked with its number."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrec.parallel.ranks import Ranks


def join_ranks(timeout: float | None = None) -> Ranks | None:
    """The ranks that torchrun started, this process among them, or None; warnings then begin with the rank."""
    from hybridrec.parallel.ranks import TIMEOUT
    from hybridrec.train.together import join

    ranks = join(TIMEOUT if timeout is None else timeout)
    if ranks is not None:
        plain, mark = warnings.formatwarning, f"rank {ranks.rank}: "
        warnings.formatwarning = lambda *args, **options: mark + plain(*args, **options)
    return ranks


def joined() -> Ranks | None:
    """The ranks that were joined, if any; loads nothing."""
    module: Any = sys.modules.get("hybridrec.parallel.ranks")
    return None if module is None else module.ranks()


def is_quiet() -> bool:
    """Whether another rank prints the result."""
    ranks = joined()
    return ranks is not None and ranks.rank > 0


def tell_others(error: Exception) -> None:
    """End all other ranks because of this error, unless it came from there."""
    ranks = joined()
    if ranks is not None and ranks.watch is not None and not is_of_another(error):
        ranks.watch.fail(error)


def is_of_another(error: Exception) -> bool:
    """Whether another rank has failed, and this one with it."""
    module: Any = sys.modules.get("hybridrec.parallel.watch")
    return module is not None and isinstance(error, module.RankFailure)


def marked(text: str) -> str:
    """The text, with the rank in front where there are several.

    >>> marked("error: no such file")
    'error: no such file'
    """
    ranks = joined()
    return text if ranks is None else f"rank {ranks.rank}: {text}"
