"""Plan: which device holds which rows and columns of which table. A frozen value, printable, saved with the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMES = ("replicated", "table", "row", "column")
WHERE = ("device", "host", "server")
VERSION = 1
TIERED = ("row", "table", "replicated")  # schemes by which ranks can have tables with hot and cold rows


def tiered_schemes(world: int) -> tuple[str, ...]:
    """The schemes by which tables may be planned in tiers on so many devices; where all have a copy, it saves nothing.

    >>> tiered_schemes(1), tiered_schemes(2)
    (('table',), ('row', 'table'))
    """
    return ("table",) if world == 1 else tuple(scheme for scheme in TIERED if scheme != "replicated")


@dataclass(frozen=True)
class Placement:
    """Where one table goes. "replicated": whole on every device; "table": whole on one; "row": rows split over
    `devices`; "column": columns split over them, `columns` of them each. `where` rows live: "device", "host" for the
    memory of the machine that the device is in, or "server": then `devices` are the numbers of servers. With a `cache`,
    each device has that share of its rows at a time, and its host the others.

    >>> Placement("item", "column", (0, 3), columns=(8, 8)), Placement("user", "table", (0,), cache=0.25)
    (Placement(item: column on 0, 3, columns 8 + 8), Placement(user: table on 0, device, 25 % hot))
    """

    table: str
    scheme: str
    devices: tuple[int, ...]
    columns: tuple[int, ...] = ()
    where: str = "device"
    reason: str = field(default="", compare=False)
    cache: float | None = None

    def __post_init__(self) -> None:
        who = f"placement of table {self.table!r}"
        if self.scheme not in SCHEMES:
            raise ValueError(f"{who}: scheme is {self.scheme!r}; valid are {', '.join(SCHEMES)}")
        if self.where not in WHERE:
            raise ValueError(f"{who}: where is {self.where!r}; valid are {', '.join(WHERE)}")
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise ValueError(f"{who}: devices are {self.devices}; name at least one, and each once")
        if self.scheme == "table" and len(self.devices) != 1:
            raise ValueError(f"{who}: scheme 'table' has one device, got {self.devices}; 'row' and 'column' have more")
        if (self.scheme == "column") != bool(self.columns) or any(width < 1 for width in self.columns):
            raise ValueError(
                f"{who}: columns are {self.columns}; scheme 'column' has at least one for each device, others none"
            )
        if self.cache is not None:
            self._check_cache(who, self.cache)
        if self.columns and len(self.columns) != len(self.devices):
            raise ValueError(f"{who}: {len(self.columns)} column slices for {len(self.devices)} devices; give one each")

    def _check_cache(self, who: str, cache: float) -> None:
        if isinstance(cache, bool) or not isinstance(cache, int | float) or not 0 < cache < 1:
            raise ValueError(
                f"{who}: cache is {cache!r}; it must be the share of rows that is hot, above 0 and below 1"
            )
        if self.where != "device" or self.scheme == "replicated":
            raise ValueError(
                f"{who}: cache is {cache!r}, scheme {self.scheme!r} and where {self.where!r}; hot rows are on the "
                "'device', and a replicated table has no cold ones"
            )

    @property
    def home(self) -> str:
        """Where rows live, in words."""
        return self.where if self.cache is None else f"{self.where}, {100 * self.cache:.3g} % hot"

    def shown_devices(self) -> str:
        """The devices in few words: runs as "0-7"."""
        parts: list[list[int]] = []
        for device in sorted(self.devices):
            if parts and device == parts[-1][1] + 1:
                parts[-1][1] = device
            else:
                parts.append([device, device])
        return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)

    def __repr__(self) -> str:
        split = f", columns {' + '.join(map(str, self.columns))}" if self.columns else ""
        home = "" if self.home == "device" else f", {self.home}"
        return f"Placement({self.table}: {self.scheme} on {self.shown_devices()}{split}{home})"


@dataclass(frozen=True)
class Plan:
    """The placements of all tables over `world` devices.

    >>> plan = Plan(2, (Placement("item", "row", (0, 1), reason="pinned"), Placement("day", "replicated", (0, 1))))
    >>> print(plan)
    table  scheme      devices  rows on  why
    item   row         0-1      device   pinned
    day    replicated  0-1      device
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    world: int
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        names = [each.table for each in self.placements]
        if twice := sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []:
            raise ValueError(f"plan: table {twice[0]!r} is placed more than once; place each once")
        for each in self.placements:
            if each.where != "server" and not 0 <= min(each.devices) <= max(each.devices) < self.world:
                raise ValueError(f"plan: {each} is outside of {self.world} devices, 0 … {self.world - 1}; plan anew")
            if each.scheme == "replicated" and len(each.devices) != self.world:
                raise ValueError(f"plan: {each} must be on all {self.world} devices; use 'row' for some of them")

    def __getitem__(self, table: str) -> Placement:
        for each in self.placements:
            if each.table == table:
                return each
        raise KeyError(f"the plan has no table {table!r}; it has {', '.join(each.table for each in self.placements)}")

    def on(self, device: int) -> tuple[Placement, ...]:
        """What a device holds."""
        return tuple(each for each in self.placements if device in each.devices and each.where != "server")

    def to_json(self) -> str:
        """The plan as text; `from_json` reads it."""
        placements = [asdict(each) for each in self.placements]
        for each in placements:
            if each["cache"] is None:
                del each["cache"]  # as it was before there were tiers
        return json.dumps({"version": VERSION, "world": self.world, "placements": placements})

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan of a text that `to_json` wrote."""
        try:
            found: Any = json.loads(text)
        except ValueError as error:
            raise ValueError(f"this is no plan: {error}; write one with hybridrec plan --save") from None
        if not isinstance(found, Mapping) or found.get("version") != VERSION:
            raise ValueError(f"this is no plan of version {VERSION}; write one with hybridrec plan --save")
        try:
            return Plan(found["world"], tuple(_placement(each) for each in found["placements"]))
        except (KeyError, TypeError) as error:  # what is lacking, strange, or of another type
            raise ValueError(f"this is no plan: {error}; write one with hybridrec plan --save") from None

    def __str__(self) -> str:
        rows = [["table", "scheme", "devices", "rows on", "why"]]
        for each in self.placements:
            split = f" ({' + '.join(map(str, each.columns))} columns)" if 0 < len(each.columns) <= 4 else ""
            rows.append([each.table, each.scheme, each.shown_devices() + split, each.home, each.reason])
        return aligned(rows)


def _placement(found: Mapping[str, Any]) -> Placement:
    lists = {name: tuple(found[name]) for name in ("devices", "columns")}
    return Placement(**{**found, **lists})


def aligned(rows: Sequence[Sequence[str]], most: int = 40) -> str:
    """Rows of words as columns for people; long words but the last are cut.

    >>> print(aligned([["a", "bb"], ["ccc", "d"]]))
    a    bb
    ccc  d
    """
    short = [[word if len(word) <= most else word[: most - 1] + "…" for word in row[:-1]] + [row[-1]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*short, strict=True)]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in short)
    return "\n".join(line.rstrip() for line in lines)
