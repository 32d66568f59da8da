"""Constraints: what the planner must respect, beside what fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hybridrec.parallel.plan import SCHEMES

WHERE = ("device", "host")  # that can be planned; tables on servers say so themselves


@dataclass(frozen=True)
class Pin:
    """A table's scheme, devices or home, as far as the user states them.

    >>> Pin(scheme="table", devices=(3,))
    Pin(scheme='table', devices=(3,), where=None)
    """

    scheme: str | None = None
    devices: tuple[int, ...] | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        if self.scheme is not None and self.scheme not in SCHEMES:
            raise ValueError(f"pin: scheme is {self.scheme!r}; valid are {', '.join(SCHEMES)}")
        if self.where is not None and self.where not in WHERE:
            raise ValueError(f"pin: where is {self.where!r}; valid are {', '.join(WHERE)}")
        if self.devices is not None and (not self.devices or len(set(self.devices)) < len(self.devices)):
            raise ValueError(f"pin: devices are {self.devices}; name at least one, and each once")


@dataclass(frozen=True)
class Constraints:
    """`pin` by table; `forbid` schemes by table, "*" for all; `margin`: the share of memory that stays free.

    A table that is not pinned is replicated only up to `replicate`, a share of a device's memory: more copies than
    that would be saved, started and filled for little.

    >>> Constraints(pin={"item": Pin("row")}, forbid={"*": ["column"]}, margin=0.2).forbidden("user")
    {'column'}
    """

    pin: Mapping[str, Pin] = field(default_factory=dict)
    forbid: Mapping[str, Collection[str]] = field(default_factory=dict)
    margin: float = 0.1
    replicate: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin is {self.margin}; it must be a share of the memory, at least 0 and below 1")
        if not 0 <= self.replicate <= 1:
            raise ValueError(f"replicate is {self.replicate}; it must be a share of the memory, from 0 to 1")
        for name, schemes in self.forbid.items():
            if isinstance(schemes, str):
                raise TypeError(f"forbid of {name!r} is the string {schemes!r}; it must be a list: [{schemes!r}]")
            if unknown := [each for each in schemes if each not in SCHEMES]:
                raise ValueError(f"forbid of {name!r} names {unknown[0]!r}; valid are {', '.join(SCHEMES)}")

    def forbidden(self, table: str) -> set[str]:
        """The schemes that a table must not have."""
        return {*self.forbid.get("*", ()), *self.forbid.get(table, ())}

    def check(self, tables: Iterable[str], world: int) -> None:
        """Refuse names of tables that there are not, devices outside of the cluster, and a pin that is forbidden."""
        known = set(tables)
        for name in (*self.pin, *self.forbid):
            if name not in known and not (name == "*" and name in self.forbid):
                raise ValueError(f"constraints name {name!r}, which is no table; those are {_listed(known)}")
        for name, pin in self.pin.items():
            if pin.devices is not None and not all(0 <= device < world for device in pin.devices):
                raise ValueError(f"table {name!r} is pinned to devices {pin.devices}; there are 0 … {world - 1}")
            if pin.scheme in self.forbidden(name):
                raise ValueError(f"table {name!r} is pinned to {pin.scheme!r}, which is forbidden; drop one of the two")


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
