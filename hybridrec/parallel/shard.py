"""shard: the rows of a model are placed on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from hybridrec import __version__
from hybridrec.embedding.table import Table
from hybridrec.parallel.cluster import KINDS, Cluster
from hybridrec.parallel.constraints import Constraints, Pin
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.grouping import GroupParts, group_of
from hybridrec.parallel.homes import Home, homes_in, place_home
from hybridrec.parallel.plan import Placement, Plan, tiered_schemes
from hybridrec.parallel.planner import make_plan
from hybridrec.parallel.ranks import Ranks, ranks
from hybridrec.parallel.schemes.tiered import refuse_tiers
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.parallel.weighing import Weighing
from hybridrec.parallel.workload import FeatureLoad, TableLoad, Workload

if TYPE_CHECKING:
    from hybridrec.server.placing import GivenServers, ServedTables

BATCH = 8_192  # rows of a rank's batch, where nobody says how many there will be
LIKELY = 1_000_000  # rows of a dynamic table, whose capacity is a limit and no measure
GROWTH = ((8_192.0, 3_300.0),)  # ids, and how many of them are distinct: as logs of clicks have it, about k ** -1.05


def shard(
    model: nn.Module,
    plan: Plan | None = None,
    *,
    wire: Wire | None = None,
    pin: Mapping[str, Pin | str] | None = None,
    servers: GivenServers | None = None,
    staleness: int | None = None,
) -> nn.Module:
    """Place the rows of every collection and fused module inside on the ranks, and the layers on all of them.

    Call it on every rank, after `hybridrec.init()` and before optimizers are made. `plan` says where tables go; without
    one they are planned here, with `pin` for those that you decide about (a scheme, or a `Pin`). `wire` has the types
    in which vectors and gradients travel. Rows that a model holds already are those of rank 0. On one process, the
    model comes back as it is.

    With `servers`, addresses such as "host:7000", tables with `where="server"` lie there, or all dynamic ones where
    none says so; rows may then be `staleness` steps behind (0: none). Whatever the servers held is gone.

    >>> import hybridrec as hr
    >>> model = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100)])
    >>> shard(model) is model
    True
    """
    world, wire = ranks(), wire or Wire()
    if servers is None and staleness is not None:
        raise ValueError(f"staleness is {staleness}, but there are no servers; give servers= too, or leave it out")
    if servers is None:
        return model if world is None else place(model, plan, world, wire, pin or {})
    from hybridrec.server.placing import ServedTables

    world = world or Ranks(0, 1)
    return place(model, plan, world, wire, pin or {}, ServedTables(servers, staleness, world, wire))


def place(
    model: nn.Module,
    plan: Plan | None,
    world: Ranks,
    wire: Wire,
    pin: Mapping[str, Pin | str],
    served: ServedTables | None = None,
) -> ShardedModel:
    """The same for these ranks, also for a single one."""
    if isinstance(model, ShardedModel):
        raise ValueError("this model is sharded already; shard it once, before optimizers are made")
    homes = homes_in(model)
    device = _device_of(model, homes)
    tables = {planned: home.table(name) for home in homes for planned, name in home.names.items()}
    world.agree("versions", {"hybridrec": __version__, "torch": torch.__version__})
    world.agree("tables", {name: repr(table) for name, table in tables.items()})
    world.agree(
        "layers", {name: list(part.shape) for name, part in (*model.named_parameters(), *model.named_buffers())}
    )
    away = {} if served is None else served.chosen(tables)
    plan = _with_servers(plan or _plan_of_the_rest(tables, away, device, world, wire, pin), tables, away)
    _check(plan, tables, world.world, device)
    world.agree("plan", plan.to_json())
    exchange, weighing = Exchange(world), Weighing()
    parts = GroupParts(world, exchange, weighing, wire)
    group = partial(group_of, parts, cache(lambda: Exchange(world)), served)
    for home in homes:
        place_home(home, plan, world, group, served)
    return ShardedModel(model, plan, world, exchange, weighing, served)


def _plan_of_the_rest(
    tables: Mapping[str, Table],
    away: Mapping[str, Placement],
    device: torch.device,
    world: Ranks,
    wire: Wire,
    pin: Mapping[str, Pin | str],
) -> Plan:
    """A plan for the tables that are not on servers, which one process keeps as they are."""
    rest = {name: table for name, table in tables.items() if name not in away}
    if rest and not (away and world.world == 1):
        return usual_plan(rest, cluster_of(device, world), wire, pin)
    here = {name: "host" if table.on_host else "device" for name, table in rest.items()}
    return Plan(
        world.world,
        tuple(Placement(name, "table", (0,), where=here[name], reason="the only process") for name in rest),
    )


def _with_servers(plan: Plan, tables: Mapping[str, Table], away: Mapping[str, Placement]) -> Plan:
    """The plan, with the tables on servers in their places; refused where it has others there."""
    planned = {each.table: each for each in plan.placements}
    if strange := [name for name, each in planned.items() if each.where == "server" and name not in away]:
        raise ValueError(
            f"the plan has table {strange[0]!r} on servers, and it is not among those that go there: "
            f"{', '.join(away) or 'none'}; give servers=, and the table where='server'"
        )
    found = {**planned, **away}
    return Plan(
        plan.world, tuple(found[name] for name in (*(n for n in tables if n in found), *(found.keys() - tables)))
    )


def usual_plan(tables: Mapping[str, Table], cluster: Cluster, wire: Wire, pin: Mapping[str, Pin | str]) -> Plan:
    """A plan without data to measure: one id per row of data and feature, repeated as in logs, and row-wise state.

    >>> tables, cluster = {"item": Table("item", 8, rows=10**6)}, Cluster.parse("1x2xcpu")
    >>> usual_plan(tables, cluster, Wire(), {"item": "row"})["item"].scheme
    'row'
    """
    loads = tuple(_load(name, table, cluster.world) for name, table in tables.items())
    pins = {name: Pin(scheme=each) if isinstance(each, str) else each for name, each in pin.items()}
    free = [name for name in tables if name not in pins]
    limits = Constraints(pin=pins, forbid={name: ["column"] for name in free})  # some optimizers need whole rows
    return make_plan(Workload(loads, BATCH), cluster, limits, wire)


def _load(name: str, table: Table, world: int) -> TableLoad:
    features = tuple(
        FeatureLoad(feature, float(table.group), combiner) for feature, combiner in table.combiners.items()
    )
    rows = table.fixed_rows if table.capacity is None else min(table.capacity, LIKELY)
    rows_each = -(-rows // world)  # a cache is what each device has of its own rows
    return TableLoad(
        *(name, rows, table.dim, features, table.dtype.itemsize, 0, 4),
        trainable=table.trainable,
        dynamic=table.dynamic,
        growth=GROWTH,
        where="host" if table.on_host else table.where,
        cache=None if table.cache is None else table.cached(rows_each) / rows_each,
        hashed=table.hashes is not None,
        on_disk=table.path is not None,
        cold=None if table.cold is None else table.cold_row_bytes(table.dim),
    )


def _check(plan: Plan, tables: Mapping[str, Table], world: int, device: torch.device) -> None:
    """Refuse a plan for other tables, or for another number of ranks. On CPUs, device and host are one."""
    if plan.world != world:
        raise ValueError(f"the plan is for {plan.world} ranks, and there are {world}; plan for {world}")
    planned = {each.table for each in plan.placements}
    if strange := sorted(planned - tables.keys()) or sorted(tables.keys() - planned):
        raise ValueError(
            f"plan and model differ in table {strange[0]!r}: the model has {', '.join(tables)}, the plan "
            f"{', '.join(sorted(planned))}; plan for this model"
        )
    for name, table in tables.items():
        placement = plan[name]
        if placement.columns and sum(placement.columns) != table.dim:
            raise ValueError(f"{placement}: its columns are not the {table.dim} of the table; plan for this model")
        if device.type != "cpu" and table.where not in (None, "server", placement.where):
            raise ValueError(f"{placement}: the table says where={table.where!r}; plan for this model")
        if device.type != "cpu":
            refuse_tiers(table, placement)
            _check_cache(placement, table, world)
        if table.dynamic and placement.scheme not in ("table", "row"):
            raise ValueError(f"{placement}: a dynamic table goes by 'table' or 'row'; pin it to one of them")


def _check_cache(placement: Placement, table: Table, world: int) -> None:
    """Refuse planned hot and cold rows where ranks or tables cannot have them, or a table says where its rows are."""
    if placement.cache is None:
        return
    if placement.scheme not in tiered_schemes(world):
        raise ValueError(
            f"{placement}: schemes by which {world} ranks have hot and cold rows are "
            f"{', '.join(tiered_schemes(world))}; plan anew, with more devices, or with where='host' for the table"
        )
    if table.rows is None or table.where is not None:
        raise ValueError(f"{placement}: hot and cold rows are for tables with rows=, and without where=; plan anew")


def _device_of(model: nn.Module, homes: Sequence[Home]) -> torch.device:
    """Where layers and rows are: all of them on one GPU, or on the CPU."""
    layers = {part.device for part in (*model.parameters(), *model.buffers())}
    rows = {home.device for home in homes}
    found = sorted(layers | rows, key=str)
    if len(found) > 1:
        where = [f"{what} on {', '.join(sorted(map(str, on)))}" for what, on in (("layers", layers), ("rows", rows))]
        raise ValueError(
            f"the model has {' and '.join(where)}; on several ranks both must be on the CPU, or on one GPU of each "
            "rank: make it with device='cuda' after hybridrec.init()"
        )
    return found[0] if found else torch.device("cpu")


def cluster_of(device: torch.device, world: Ranks) -> Cluster:
    """What a plan takes the ranks for: cards of the kind that rank 0 has, with the memory of the smallest.

    >>> cluster_of(torch.device("cpu"), Ranks(0, 1))
    Cluster(1x1xcpu, 1 devices of 64 GB)
    """
    if device.type != "cuda":
        return Cluster.parse(f"1x{world.world}xcpu")
    told = world.all_told([torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory])
    kind = next((each for each in KINDS if each.split("-")[0] in told[0][0]), "A100-80")
    return Cluster.parse(f"1x{world.world}x{kind}", memory=float(min(room for _, room in told)))
