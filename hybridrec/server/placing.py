"""ServedTables: which tables of a model go to servers, and how they get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridrec.embedding.store import Store
from hybridrec.embedding.table import Table
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.plan import Placement
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.weighing import Weighing
from hybridrec.server.client import Servers, Session
from hybridrec.server.config import ServersConfig, check_staleness
from hybridrec.server.course import Course
from hybridrec.server.declared import declaration_of
from hybridrec.server.protocol import Kind
from hybridrec.server.remote_fixed_store import RemoteFixedStore
from hybridrec.server.remote_store import RemoteStore
from hybridrec.server.served_group import ServedGroup, in_order

GivenServers = Sequence[str] | ServersConfig | Servers


class ServedTables:
    """The tables of a model that lie on servers. All trainers make it alike, and agree on a session here."""

    def __init__(self, given: GivenServers, staleness: int | None, ranks: Ranks, wire: Wire) -> None:
        self.ranks = ranks
        if isinstance(given, Servers):
            self.servers, stale = given, staleness or 0
        else:
            config = given if isinstance(given, ServersConfig) else ServersConfig(given)
            self.servers, stale = _connected(config, ranks), config.staleness if staleness is None else staleness
        check_staleness(stale)
        ranks.agree("servers", [self.servers.count, stale])
        before = max(answer.fields["session"] for answer in self.servers.ask_all(Kind.HELLO))
        wires = {"wire": wire.forward, "gradient_wire": wire.gradient}
        self.session = Session(self.servers, ranks.told(before + 1), ranks.rank, ranks.world, staleness=stale, **wires)
        self._groups, self.told = 0, ""

    @property
    def staleness(self) -> int:
        return self.session.staleness

    def chosen(self, tables: Mapping[str, Table]) -> dict[str, Placement]:
        """Those that say so, or else all that are dynamic; by the names that a plan has them by."""
        named = [name for name, table in tables.items() if table.where == "server"]
        found = named or [name for name, table in tables.items() if table.dynamic and table.where is None]
        if not found:
            raise ValueError(
                f"there are servers, but no table for them: none says where='server', and none of {', '.join(tables)} "
                "is dynamic and free to go there; give one where='server', or leave servers out"
            )
        for name in found:
            if name != tables[name].name:
                raise ValueError(f"two collections have a table {tables[name].name!r}; servers want different names")
        self.told = f"on {self.servers.count} servers, staleness {self.staleness}: tables {', '.join(found)}"
        if not named:
            self.told += "; none says where='server', so all that are dynamic are there"
        why = "on servers, as the table says" if named else "on servers, as all dynamic tables"
        holders = tuple(range(self.servers.count))
        return {name: Placement(name, "row", holders, where="server", reason=why) for name in found}

    def stores(self, tables: Mapping[str, Table], seed: int) -> dict[str, RemoteStore]:
        """Stores of tables that are trained together, empty on all servers."""
        kinds = {True: RemoteStore, False: RemoteFixedStore}
        made = {name: kinds[table.dynamic](table, seed, self.session) for name, table in tables.items()}
        self.session.attach(self._groups, [declaration_of(made[name].table, seed) for name in in_order(made)])
        for store in made.values():
            store.empty()
        self._groups += 1
        return made

    def fill(self, old: Store, new: RemoteStore) -> None:
        """Give servers the rows that rank 0 holds."""
        if self.ranks.rank == 0:
            for part in old.chunks():
                new.load_alone(part._replace(state={}))
        self.ranks.barrier()

    def group(
        self, stores: Mapping[str, RemoteStore], trainable: set[str], exchange: Exchange, weighing: Weighing
    ) -> ServedGroup:
        """The group of stores that were made together."""
        course = Course(self.session, self._groups - 1)
        return ServedGroup(stores, trainable, course, self.ranks, exchange, weighing)


def _connected(options: ServersConfig, ranks: Ranks) -> Servers:
    return Servers.connect(
        list(options.addresses),
        token=options.token(),
        tls=options.tls(),
        deadline=options.deadline,
        name=f"trainer {ranks.rank} of {ranks.world}",
    )
