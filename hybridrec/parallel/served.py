"""Tables on servers, in a plan: which ones they are, and the memory that they take there. Devices hold none of them."""

from __future__ import annotations

from collections.abc import Collection

from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.workload import Workload


def served_placements(workload: Workload, servers: int | None, pinned: Collection[str]) -> dict[str, Placement]:
    """Where rows go that do not lie on devices: those of tables that say so; where none does and there are servers,
    those of all dynamic ones that are free to go there, as in training. Without a number, one server is taken.

    >>> from hybridrec.parallel import TableLoad
    >>> work = Workload((TableLoad("user", 9, 4, dynamic=True), TableLoad("day", 7, 4)), 64)
    >>> served_placements(work, 2, []), served_placements(work, None, [])
    ({'user': Placement(user: row on 0-1, server)}, {})
    """
    if servers is not None and servers < 1:
        raise ValueError(f"servers is {servers}; at least one holds rows, or leave it out")
    named = [table.name for table in workload.tables if table.where == "server"]
    if odd := [name for name in named if name in pinned]:
        raise ValueError(f"table {odd[0]!r} is pinned, and says where='server'; drop one of the two")
    free = [each.name for each in workload.tables if each.dynamic and each.where is None and each.name not in pinned]
    if servers and not (named or free):
        raise ValueError(
            f"there are {servers} servers, but no table for them: none says where='server', and none is dynamic and "
            "free to go there; give one capacity= in place of rows=, or leave servers out"
        )
    why = "on servers, as the table says" if named else "on servers, as all dynamic tables"
    holders = tuple(range(servers or 1))
    there = named or (free if servers else [])
    return {name: Placement(name, "row", holders, where="server", reason=why) for name in there}


def server_memory(plan: Plan, workload: Workload) -> tuple[int, ...]:
    """Bytes on each server, rows being dealt out evenly; () where a plan has none."""
    served = [(table, plan[table.name]) for table in workload.tables if plan[table.name].where == "server"]
    found = [0] * max((max(each.devices) + 1 for _, each in served), default=0)
    for table, placement in served:
        for server in placement.devices:
            found[server] += -(-table.rows // len(placement.devices)) * table.row_bytes()
    return tuple(found)
