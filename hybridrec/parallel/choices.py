"""Choices: the ways in which a table may be placed, each with its load, before devices are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from hybridrec.parallel import cost
from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.constraints import Constraints, Pin
from hybridrec.parallel.plan import Placement, tiered_schemes
from hybridrec.parallel.workload import TableLoad

NARROWEST = 4  # columns of a slice: below, a row is less than what memory moves at once
HOT = (0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06, 0.045, 0.03, 0.02, 0.015, 0.01, 0.005, 0.002)  # shares of rows
IN_FLIGHT = 2  # steps whose rows a device has at a time, of a table in tiers
DYNAMIC = ("table", "row")  # schemes of tables whose rows come as ids are seen: one home for each id


@dataclass(frozen=True, eq=False)
class Choice:
    """A scheme with its number of holders; `fixed` devices where there is nothing to choose."""

    table: TableLoad
    scheme: str
    where: str
    everyone: np.ndarray  # [quantity]
    holders: np.ndarray  # [holder, quantity]
    columns: tuple[int, ...] = ()
    fixed: tuple[int, ...] | None = None
    work: float = field(default=0.0)  # seconds of all devices together, but for the latency that tables share
    cache: float | None = None  # the share of rows that is hot, where not all are on the device

    @property
    def count(self) -> int:
        return len(self.holders)

    def placed(self, devices: tuple[int, ...], world: int) -> np.ndarray:
        """What it asks of every device: [quantity, device]."""
        made = np.repeat(self.everyone[:, None], world, axis=1)
        made[:, list(devices)] += self.holders.T
        return made

    def placement(self, devices: tuple[int, ...], world: int, reason: str) -> Placement:
        """The placement with these holders."""
        on = tuple(range(world)) if self.scheme == "replicated" else devices
        return Placement(self.table.name, self.scheme, on, self.columns, self.where, reason, self.cache)

    def all_devices(self, world: int) -> Iterator[tuple[int, ...]]:
        """Every set of devices that could hold it; the wider slices come first in each."""
        return iter([self.fixed]) if self.fixed is not None else combinations(range(world), self.count)


def widths_of(dim: int, count: int) -> tuple[int, ...]:
    """The columns of each slice, the wider ones first.

    >>> widths_of(6, 4)
    (2, 2, 1, 1)
    """
    return tuple(dim // count + (i < dim % count) for i in range(count))


def choices_of(table: TableLoad, step: cost.Step, constraints: Constraints, tiers: bool = False) -> list[Choice]:
    """All choices of a table that the constraints allow, in a fixed order; with `tiers`, also those with cold rows.

    A table that says its `cache` has no others on devices with memory of their own.
    """
    pin = _pin(table, constraints, step.cluster)
    own = table.cache if _has_tiers(step.cluster) and table.cache != 1 else None
    made = _choices(table, step, pin) if own is None else iter(())
    tiered = _tiered(table, step, pin, HOT if own is None else (own,)) if tiers or own is not None else iter(())
    found = [each for each in (*made, *tiered) if _allowed(each, pin, constraints, step.cluster)]
    if not found:
        raise ValueError(
            f"no scheme is left for table {table.name!r}: {_said(pin)}, forbidden are "
            f"{', '.join(sorted(constraints.forbidden(table.name))) or 'none'}"
            f"{', and a dynamic table has one of ' + ', '.join(DYNAMIC) if table.dynamic else ''}"
            f"{'' if own is None else _said_of_cache(own, step.world)}; allow another one, or pin it to 'replicated' "
            "if it is only too large for that"
        )
    return found


def _said_of_cache(cache: float, world: int) -> str:
    schemes = " or ".join(tiered_schemes(world))
    return f", and a table with a cache, here {cache:.3g} of its rows, has {schemes} on {world} devices: leave it out"


def _has_tiers(cluster: Cluster) -> bool:
    """Whether devices have hosts beside them; those that are CPUs have all rows in one memory."""
    return cluster.kind != "cpu" and bool(cluster.host_memory)


def _pin(table: TableLoad, constraints: Constraints, cluster: Cluster) -> Pin:
    """What is pinned, with the home that the table itself asks for; devices that are CPUs are hosts as well."""
    pin = constraints.pin.get(table.name, Pin())
    return replace(pin, where=None if cluster.kind == "cpu" else pin.where or table.where)


def _said(pin: Pin) -> str:
    parts = [f"{name} {value}" for name, value in vars(pin).items() if value is not None]
    return f"it is pinned to {', '.join(parts)}" if parts else "it has no pin"


def _allowed(choice: Choice, pin: Pin, constraints: Constraints, cluster: Cluster) -> bool:
    if choice.scheme in constraints.forbidden(choice.table.name):
        return False
    if choice.table.dynamic and choice.scheme not in DYNAMIC:
        return False
    if choice.scheme == "replicated" and pin.scheme is None:
        small = choice.table.rows * choice.table.row_bytes() <= constraints.replicate * cluster.memory
        if pin.devices is not None or not (small or cluster.world == 1):
            return False
    if choice.scheme == "replicated" and len(pin.devices or range(cluster.world)) != cluster.world:
        return False
    return pin.scheme in (None, choice.scheme) and pin.where in (None, choice.where)


def _choices(table: TableLoad, step: cost.Step, pin: Pin) -> Iterator[Choice]:
    world = step.world
    yield _made(table, step, "replicated", "device", (cost.replicated(table, step), np.zeros((0, cost.QUANTITIES))), ())
    for where in ("device", "host") if step.cluster.host_memory else ("device",):
        home = cost.Home(host=where == "host")
        for count in _counts(table.dim, world, pin):
            scheme, widths = "table" if count == 1 else "column", widths_of(table.dim, count)
            columns = widths if count > 1 else ()
            yield _made(table, step, scheme, where, cost.whole(table, step, widths, home), pin.devices, columns)
        count = world if pin.devices is None else len(pin.devices)
        if count > 1 or pin.scheme == "row":
            holders = pin.devices or tuple(range(world))
            yield _made(table, step, "row", where, cost.rowwise(table, step, count, home), holders)


def _tiered(table: TableLoad, step: cost.Step, pin: Pin, shares: tuple[float, ...]) -> Iterator[Choice]:
    """A share of rows on devices, others on their hosts, with room for the rows of the steps that are in flight."""
    schemes = tiered_schemes(step.world) if _has_tiers(step.cluster) else ()
    if not schemes or not (table.cache is not None or (table.takes_cache and pin.where is None)):
        return
    count = step.world if pin.devices is None else len(pin.devices)
    touched = table.distinct(step.world * step.batch_size * table.hotness)
    for share in shares:
        home = cost.Home(cache=share)
        if table.cache is None and share * table.rows < IN_FLIGHT * touched:
            continue
        if "table" in schemes:
            loads = cost.whole(table, step, (table.dim,), home)
            yield _made(table, step, "table", "device", loads, pin.devices, cache=share)
        if "row" in schemes and (count > 1 or pin.scheme == "row"):
            holders = pin.devices or tuple(range(step.world))
            yield _made(table, step, "row", "device", cost.rowwise(table, step, count, home), holders, cache=share)


def _counts(dim: int, world: int, pin: Pin) -> list[int]:
    """Into how many slices of columns a table may be split: powers of two, and as many as there are devices."""
    if pin.devices is not None:
        return [len(pin.devices)] if len(pin.devices) <= dim else []
    most = max(1, min(world, dim // (1 if pin.scheme == "column" else NARROWEST)))
    powers = [2**i for i in range(most.bit_length()) if 2**i <= most]
    return sorted({*powers, most})


def _made(
    table: TableLoad,
    step: cost.Step,
    scheme: str,
    where: str,
    loads: tuple[np.ndarray, np.ndarray],
    fixed: tuple[int, ...] | None,
    columns: tuple[int, ...] = (),
    cache: float | None = None,
) -> Choice:
    everyone, holders = loads
    mean = (everyone + holders.sum(axis=0) / step.world)[:, None]
    mean[cost.SHARED] = 0
    work = float(cost.seconds(mean, step)[0]) * step.world
    if scheme != "replicated" and fixed is None and len(holders) == step.world:
        fixed = tuple(range(step.world))
    return Choice(table, scheme, where, everyone, holders, columns, fixed, work, cache)
