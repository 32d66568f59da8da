"""What servers are doing, made of two looks at their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("server", "lookups/s", "ids/s", "pushes/s", "rows", "hits", "behind", "queue", "busy", "memory")


def rates(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Of one server: what it did per second between two looks.

    >>> names = ("uptime", "lookups", "ids_looked_up", "pushes", "seconds")
    >>> one = dict(zip(names, (1.0, 0, 0, 0, 0.0))) | {"staleness": [0], "tables": {}}
    >>> two = dict(zip(names, (3.0, 8, 90, 8, 1.0))) | {"staleness": [8], "tables": {}}
    >>> rates(one, two)
    {'lookups': 4.0, 'ids': 45.0, 'pushes': 4.0, 'busy': 0.5, 'hit_rate': 1.0, 'staleness': 0.0}
    """
    again = after["uptime"] < before["uptime"] or len(after["staleness"]) != len(before["staleness"])
    before = _nothing(after) if again else before  # it has started anew, or trains anew
    seconds = max(after["uptime"] - before["uptime"], 1e-9)
    names = {"lookups": "lookups", "ids": "ids_looked_up", "pushes": "pushes", "busy": "seconds"}
    made = {name: (after[key] - before[key]) / seconds for name, key in names.items()}
    hits, misses = (_in_tables(after, key) - _in_tables(before, key) for key in ("hits", "misses"))
    made["hit_rate"] = hits / (hits + misses) if hits + misses else 1.0
    seen = [max(0, now - then) for now, then in zip(after["staleness"], before["staleness"], strict=True)]
    made["staleness"] = sum(unseen * count for unseen, count in enumerate(seen)) / max(sum(seen), 1)
    return made


def _nothing(after: Mapping[str, Any]) -> dict[str, Any]:
    zeros = dict.fromkeys(("uptime", "lookups", "ids_looked_up", "pushes", "seconds"), 0)
    return {**zeros, "staleness": [0] * len(after["staleness"]), "tables": {}}


def _in_tables(stats: Mapping[str, Any], key: str) -> int:
    return sum(table[key] for table in stats["tables"].values())


def lines(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line of text for every server, in the order of COLUMNS."""
    found = []
    for then, now in zip(before, after, strict=True):
        rate = rates(then, now)
        speeds = [f"{rate[name]:,.0f}" for name in ("lookups", "ids", "pushes")]
        state = [f"{_in_tables(now, 'rows'):,}", f"{rate['hit_rate']:.0%}", f"{rate['staleness']:.1f}"]
        memory = f"{now['memory'] / 2**30:,.1f} GB" if now["memory"] >= 2**30 else f"{now['memory'] / 2**20:,.0f} MB"
        found.append([str(now["number"]), *speeds, *state, str(now["waiting"]), f"{rate['busy']:.0%}", memory])
    return found
