"""How far behind rows on servers were when they were looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from hybridrec.server.protocol import Kind


class ObservedStaleness:
    """Counts of training lookups by the steps that they did not see, since they were last taken.

    Servers count them; without servers there is nothing to tell.
    """

    def __init__(self, model: nn.Module) -> None:
        self._served = getattr(model, "served", None)
        self._before: list[int] = []

    def take(self) -> dict[str, Any]:
        """What a record has of it: {} where no table is on servers."""
        if self._served is None:
            return {}
        told = [answer.fields["staleness"] for answer in self._served.servers.ask_all(Kind.STATS)]
        now = _added(told)
        since, self._before = _added([now, [-count for count in self._before]]), now
        return {"servers": {**summed_up(since), "allowed": self._served.staleness}}


def summed_up(counts: Sequence[int]) -> dict[str, float | None]:
    """The mean and the largest staleness of lookups, by how many had 0, 1, …; None of none.

    >>> summed_up([6, 0, 2])
    {'staleness': 0.5, 'staleness_max': 2}
    """
    total = sum(counts)
    if not total:
        return {"staleness": None, "staleness_max": None}
    most = max(steps for steps, count in enumerate(counts) if count)
    return {"staleness": sum(steps * count for steps, count in enumerate(counts)) / total, "staleness_max": most}


def _added(lists: Sequence[Sequence[int]]) -> list[int]:
    """Lists of counts added up; shorter ones have zeros behind.

    >>> _added([[1, 2], [3]])
    [4, 2]
    """
    return [sum(each[at] for each in lists if at < len(each)) for at in range(max(map(len, lists), default=0))]
