"""make_plan: from workload and cluster to a plan. A pure function, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from hybridrec.parallel import cost
from hybridrec.parallel.choices import Choice, choices_of
from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.constraints import Constraints
from hybridrec.parallel.plan import SCHEMES, Plan, tiered_schemes
from hybridrec.parallel.search import SMALL, UNFIT, Option, Search
from hybridrec.parallel.served import served_placements
from hybridrec.parallel.workload import Workload

GB = 10**9
# Every collective costs latency once, so tables leave a scheme only together: begin with and without each.
BEGINNINGS = (
    SCHEMES,
    ("replicated",),
    ("table", "column"),
    ("row",),
    ("table", "column", "row"),
    ("replicated", "row"),
)


class CannotFit(ValueError):
    """No plan fits; `shortfall` is the bytes that each device lacks at least."""

    def __init__(self, message: str, shortfall: int) -> None:
        super().__init__(message)
        self.shortfall = shortfall


def make_plan(
    workload: Workload,
    cluster: Cluster,
    constraints: Constraints | None = None,
    wire: cost.Wire | None = None,
    servers: int | None = None,
) -> Plan:
    """A plan whose slowest device is as fast as can be found, within the memory and the constraints.

    Tables that lie on `servers` take nothing of the devices: see `served.py` for which ones. Where devices have no room
    and can have tables in tiers, some get a `cache`. It is deterministic. `CannotFit` says by how much the memory is
    short, and what would help.

    >>> from hybridrec.parallel import TableLoad
    >>> tables = (TableLoad("item", rows=10**8, dim=64), TableLoad("day", rows=7, dim=64))
    >>> plan = make_plan(Workload(tables, batch_size=4096), Cluster.parse("1x8xH100"))
    >>> [(each.table, each.scheme) for each in plan.placements]
    [('item', 'column'), ('day', 'row')]
    """
    limits = constraints or Constraints()
    step = cost.Step(cluster, workload.batch_size, wire or cost.Wire())
    limits.check([table.name for table in workload.tables], cluster.world)
    away = served_placements(workload, servers, limits.pin)
    here = [table for table in workload.tables if table.name not in away]
    room, host_room = (1 - limits.margin) * cluster.memory, (1 - limits.margin) * cluster.host_memory / cluster.devices
    search = Search([choices_of(table, step, limits) for table in here], step, room, host_room)
    chosen = _found(search)
    if _crowded(chosen) and tiered_schemes(cluster.world) and any(table.takes_cache for table in here):
        tiered = Search([choices_of(table, step, limits, tiers=True) for table in here], step, room, host_room)
        chosen = _better_of(search, chosen, _found(tiered))
    if chosen is None:
        raise _cannot_fit(search, cluster, limits, _least_room(search))
    placed = {
        option.choice.table.name: option.choice.placement(
            option.devices, cluster.world, _reason(option, of_table, search, limits)
        )
        for option, of_table in zip(chosen, search.choices, strict=True)
    }
    return Plan(cluster.world, tuple((placed | away)[table.name] for table in workload.tables))


def _found(search: Search) -> list[Option] | None:
    """What the search finds, if there can be anything to find."""
    return _search(search) if _least_room(search) <= search.room + search.host_room else None


def _crowded(chosen: list[Option] | None) -> bool:
    """Whether tables that could be in tiers are on hosts, or nowhere, since devices have no room for them."""
    return chosen is None or any(option.choice.where == "host" and option.choice.table.takes_cache for option in chosen)


def _better_of(search: Search, first: list[Option] | None, second: list[Option] | None) -> list[Option] | None:
    found = [each for each in (first, second) if each is not None]
    return min(found, key=lambda options: float(search.score(search.total(options))[0]), default=None)


def _search(search: Search) -> list[Option] | None:
    """The best of several beginnings, each improved; where there are many tables, the first that fits."""
    if not search.choices:
        return []  # all tables are on servers
    tables = range(len(search.choices))
    by_work = sorted(tables, key=lambda t: (-min(each.work for each in search.choices[t]), t))
    by_room = sorted(
        tables, key=lambda t: (-search.choices[t][0].table.rows * search.choices[t][0].table.row_bytes(), t)
    )
    starts = [(by_work, schemes, False) for schemes in BEGINNINGS]
    starts += [(by_room, SCHEMES, False), (by_room, SCHEMES, True)]
    small = len(search.choices) * search.world <= SMALL
    best, score = None, (inf, inf)
    for order, schemes, fullest in starts if small else [starts[0], *starts[-2:]]:
        found = search.improve(search.greedy(order, schemes, by_room=fullest))
        slowest, squares = map(float, search.score(search.total(found)))
        if (slowest, squares) < score:
            best, score = found, (slowest, squares)
        if not small and slowest < UNFIT:
            break
    assert best is not None, "there is a beginning"
    best = search.improve(best, thorough=True)
    return best if search.fits(search.total(best)) else None


def _reason(option: Option, choices: Sequence[Choice], search: Search, limits: Constraints) -> str:
    """Why a table is placed so, in words: a pin, no room elsewhere, or its seconds beside those of other schemes."""
    chosen = option.choice
    if chosen.table.name in limits.pin:
        return "pinned"
    asked = f"on the {chosen.where}, as the table says; " if chosen.table.where == chosen.where else ""
    return asked + _costs(chosen, choices, search)


def _costs(chosen: Choice, choices: Sequence[Choice], search: Search) -> str:
    """What speaks for a choice beside the others."""
    means: dict[str, float] = {}
    for each in dict.fromkeys((*choices, chosen)):
        if (each.where == "device" and each.cache is None) or each is chosen:
            means[_name(each)] = min(means.get(_name(each), inf), each.work / search.world)
    own = _name(chosen)
    cheaper = sorted((name for name in means if means[name] < means[own] * (1 - 1e-9)), key=lambda name: means[name])
    said = f"{_time(means[own])} a device on average"
    if not cheaper:
        others = sorted((name for name in means if name != own), key=lambda name: means[name])
        return f"least time: {said}" + (f"; {others[0]} {_time(means[others[0]])}" if others else "")
    crowded = [name for name in cheaper if all(_too_big(each, search) for each in choices if _name(each) == name)]
    if len(crowded) == len(cheaper):
        return f"{' and '.join(crowded)} would not fit a device; {said}"
    why = "evens out the devices" if chosen.cache is None else "leaves room to other tables"
    return f"{why}: {said}; {cheaper[0]} {_time(means[cheaper[0]])}"


def _name(choice: Choice) -> str:
    if choice.cache is not None:
        return f"{choice.scheme}, {100 * choice.cache:.3g} % hot"
    return choice.scheme if choice.where == "device" else f"{choice.scheme} on hosts"


def _too_big(choice: Choice, search: Search) -> bool:
    return not bool(search.fits(choice.placed(choice.fixed or tuple(range(choice.count)), search.world)))


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def _least_room(search: Search) -> float:
    """Bytes that each device needs at least: every table in its smallest form, spread evenly."""
    rooms = [cost.ROOM, cost.HOST_ROOM]
    return sum(
        min(float((each.everyone + each.holders.sum(0) / search.world)[rooms].sum()) for each in of_table)
        for of_table in search.choices
    )


def _cannot_fit(search: Search, cluster: Cluster, limits: Constraints, least: float) -> CannotFit:
    """How much is missing, and what would help."""
    free = search.room + search.host_room
    short = max(0, ceil(least - free))
    host = " with its share of the host's memory" if search.host_room else ""
    if short:
        what = f"the tables need at least {_size(least)} on each of {cluster.world} devices{host}"
        tell = f"{_size(free)} are free there: {_size(short)} are missing on each"
    else:
        what = f"the tables need {_size(least)} on each of {cluster.world} devices{host} if they are spread evenly"
        tell = f"{_size(free)} are free there, but constraints or whole tables let no plan be found"
    more = _more_devices(search, least, free)
    return CannotFit(
        f"{what}, and {tell} (margin {limits.margin:g}). Take {more}, a smaller margin, rows in half precision, an "
        "optimizer with less state, or drop pins and forbidden schemes",
        short,
    )


def _more_devices(search: Search, least: float, free: float) -> str:
    """How many devices would do: they share the rows. The vectors of its own batch are on each, however many."""
    tables = [of_table[0].table for of_table in search.choices]
    rows = float(sum(table.rows * table.row_bytes() for table in tables))
    buffers = max(0.0, least - rows / search.world)
    if free <= buffers:
        return (
            f"devices with more memory, or a smaller batch (more devices do not help: {_size(buffers)} on each are "
            "for what they do not share)"
        )
    return f"about {max(search.world + 1, ceil(rows / (free - buffers)))} devices"


def _size(count: float) -> str:
    return f"{count / GB:,.3g} GB" if count >= GB / 1000 else f"{count:,.0f} bytes"
