"""Names of a checkpoint as a model has them now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Renamer = Callable[[str], str]


def renamer(rename: Mapping[str, str] | None, known: Iterable[str]) -> Renamer:
    """What gives a saved name its new one: `rename` has whole names, or their beginnings up to a dot.

    >>> new = renamer({"tower": "towers.left", "tower.item": "item"}, ["tower.item", "tower.0.weight", "top.bias"])
    >>> new("tower.0.weight"), new("tower.item"), new("top.bias")
    ('towers.left.0.weight', 'item', 'top.bias')
    """
    given, names = dict(rename or {}), list(known)
    for old in given:
        if not any(_begins(name, old) for name in names):
            raise ValueError(f"rename has {old!r}, which the checkpoint does not; it has {', '.join(names[:20])}")
    new = {name: renamed(name, given) for name in names}
    twice: dict[str, str] = {}
    for old, name in new.items():
        if name in twice:
            raise ValueError(f"rename makes {name!r} of both {twice[name]!r} and {old!r}; give them different names")
        twice[name] = old
    return lambda name: renamed(name, given)


def _begins(name: str, old: str) -> bool:
    return name == old or name.startswith(old + ".")


def renamed(name: str, given: Mapping[str, str]) -> str:
    """The new name of a saved one."""
    fitting = [old for old in given if _begins(name, old)]
    if not fitting:
        return name
    old = max(fitting, key=len)
    return given[old] + name[len(old) :]
