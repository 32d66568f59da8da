"""Which groups the tables of a home are in: those of ranks, of the host beside GPUs, of servers, or several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.grouping import make_group
from hybridrec.embedding.mixed.joined import JoinedGroup
from hybridrec.embedding.native_store import NativeStore
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.homes import Pieces, Stores
from hybridrec.parallel.mixed_group import MixedShardedGroup
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.sharded_group import ShardedGroup
from hybridrec.parallel.weighing import Weighing

if TYPE_CHECKING:
    from hybridrec.server.placing import ServedTables


class GroupParts(NamedTuple):
    """What all groups of tables have in common."""

    ranks: Ranks
    exchange: Exchange
    weighing: Weighing
    wire: Wire


def group_of(
    parts: GroupParts,
    of_hosts: Callable[[], Exchange],
    served: ServedTables | None,
    device: torch.device,
    stores: Stores,
    trainable: set[str],
    pieces: Pieces,
) -> Any:
    """The group of tables where their rows are: on servers, and on ranks, where the only process has its own kind."""
    away = {name: store for name, store in stores.items() if name not in pieces}
    rest = {name: store for name, store in stores.items() if name in pieces}
    if served is None or not away:
        return _group_of_ranks(parts, of_hosts, device, stores, trainable, pieces)
    on_servers = served.group(away, trainable, parts.exchange, parts.weighing)
    if not rest and device.type == "cpu":
        return on_servers
    on_cards, on_hosts = _groups_beside(parts, of_hosts, device, rest, trainable, pieces)
    host = on_servers if on_hosts is None else JoinedGroup([*away, *on_hosts.stores], [on_servers, on_hosts])
    if on_cards is None and device.type == "cpu":
        return JoinedGroup(stores, host.parts if isinstance(host, JoinedGroup) else [host])
    kind = MixedGroup if parts.ranks.world == 1 else MixedShardedGroup
    return kind(stores, on_cards, host, device)


def _groups_beside(
    parts: GroupParts,
    of_hosts: Callable[[], Exchange],
    device: torch.device,
    stores: Stores,
    trainable: set[str],
    pieces: Pieces,
) -> tuple[Any, Any]:
    """The groups of tables beside those on servers: on GPUs, and in memory of the host; None where there are none."""
    here = {name: store for name, store in stores.items() if isinstance(store, NativeStore)}
    there = {name: store for name, store in stores.items() if name not in here}
    if parts.ranks.world == 1:
        made = [make_group(some, trainable, torch.device("cpu")) if some else None for some in (here, there)]
        return made[1], made[0]
    of_ranks = parts if device.type == "cpu" else parts._replace(exchange=of_hosts())
    return (
        _device_group(parts, there, trainable, pieces) if there else None,
        ShardedGroup(here, trainable, pieces, *of_ranks) if here else None,
    )


def _group_of_ranks(
    parts: GroupParts,
    of_hosts: Callable[[], Exchange],
    device: torch.device,
    stores: Stores,
    trainable: set[str],
    pieces: Pieces,
) -> Any:
    """Those of hosts beside GPUs have an exchange of their own."""
    here = {name: store for name, store in stores.items() if isinstance(store, NativeStore)}
    there = {name: store for name, store in stores.items() if name not in here}
    if not there and device.type == "cpu":
        return ShardedGroup(stores, trainable, pieces, *parts)
    on_cards = _device_group(parts, there, trainable, pieces) if there else None
    if not here:
        return on_cards
    on_hosts = ShardedGroup(here, trainable, pieces, *parts._replace(exchange=of_hosts()))
    return MixedShardedGroup(stores, on_cards, on_hosts, device)


def _device_group(parts: GroupParts, stores: Stores, trainable: set[str], pieces: Pieces) -> Any:
    from hybridrec.parallel.gpu.group import DeviceShardedGroup  # Triton comes with it
    from hybridrec.parallel.gpu.transport import transport_for

    device = next(iter(stores.values())).device
    transport = parts.exchange.transports.get(device) or transport_for(parts.ranks, parts.exchange, device)
    parts.exchange.transports[device] = transport
    return DeviceShardedGroup(stores, trainable, pieces, *parts, transport)
