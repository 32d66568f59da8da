"""Cost: what a table under a scheme asks of every device in a step, and the seconds that makes.

A step has phases: ids go to the devices that hold rows, rows or pooled sums come back, gradients go the same way in
reverse, rows are updated where they live. With W devices that take b rows of data each, for a table of D columns and a
feature set of h ids and v vectors per row of data: n = b h ids, u = distinct(n), U = distinct(W n).

                 everyone                               each of k holders, beside that
    table        sends n ids, gets b v D numbers        gets W n ids, sends W b v D; reads U rows, updates U
    column       the same, n ids to each of k           the same with its own columns of D
    row          sends u ids, gets u D numbers          gets W u / k ids, sends W u D / k; reads, updates U / k
    replicated   reads u rows, updates U; reduces       nothing
                 min((W - 1) u (D + id), 2 D rows (W - 1) / W) numbers of gradients

Of few rows, a holder has at least one. Gradients of the numbers travel back in the same amounts. What a device sends to
itself is not counted. Links work in both directions at once, so a phase takes the larger of in and out; phases follow
each other, so they add up.

Of a table in tiers, a device has a share of its rows, and those of a step that it has not come over the link to its
host, as many going there at once: m of the U that all look up (`TableLoad.missed`), or m / k. They are taken to come
before the step, not beside it.

Where processors do the work, ids and rows take time one by one, whatever their bytes. Everyone finds out where n ids go
and pools as many vectors (table, column: the v that come), holders look up what they get, sort the gradients of as much
by row, and update their rows. A step also has calls whose time hangs on nothing; it is that of every plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.workload import TableLoad

# What is added up per device: bytes of a step, ids and rows that are touched, flags, bytes that stay.
MEMORY, TOUCHES, HOST, IDS_OUT, IDS_IN, OUT, IN, REDUCE, EXCHANGES, REDUCES, CALLS, ROOM, HOST_ROOM = range(13)
QUANTITIES = 13
SHARED = [EXCHANGES, REDUCES, CALLS]  # flags: what all tables of a step have in common
ID, NUMBER = 8, 4
ENTRY, SLOT = 4, 8  # bytes that a device keeps for each row of a table in tiers, and for each that is hot
ON_CARD = 9  # bytes that a GPU keeps for each row of a dynamic table beyond those of a host
WIRE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
PHASES = (
    *("memory", "ids and rows one by one", "host link", "ids", "vectors and gradients"),
    *("reduction of replicated tables", "latency", "calls"),
)


@dataclass(frozen=True)
class Wire:
    """The types in which vectors and their gradients travel.

    >>> Wire(forward="bfloat16").bytes(trainable=True)
    6
    """

    forward: str = "float32"
    gradient: str = "float32"

    def __post_init__(self) -> None:
        for name in ("forward", "gradient"):
            if getattr(self, name) not in WIRE_BYTES:
                raise ValueError(f"wire: {name} is {getattr(self, name)!r}; valid are {', '.join(WIRE_BYTES)}")

    def bytes(self, trainable: bool) -> int:
        """Of a number on its way there, and of its gradient on its way back."""
        return WIRE_BYTES[self.forward] + (WIRE_BYTES[self.gradient] if trainable else 0)


@dataclass(frozen=True)
class Home:
    """Where a holder has its rows: on the device, on its host, or the share `cache` of them here and the rest there."""

    host: bool = False
    cache: float | None = None


@dataclass(frozen=True)
class Step:
    """What all loads of a step have in common."""

    cluster: Cluster
    batch_size: int  # of a device
    wire: Wire = Wire()

    @property
    def world(self) -> int:
        return self.cluster.world


def replicated(table: TableLoad, step: Step) -> np.ndarray:
    """What a replicated table asks of every device: an array of the quantities above.

    Distinct rows are read at home; their gradients go to all others, one by one.
    """
    world, made = step.world, np.zeros(QUANTITIES)
    ids = step.batch_size * table.hotness
    here, all_of_them = table.distinct(ids), table.distinct(ids * world)
    numbers = step.batch_size * table.vectors * table.dim
    made[MEMORY] = here * table.dim * table.element + NUMBER * (2 * numbers + 3 * here * table.dim)
    made[[TOUCHES, CALLS]] = 2 * ids + here, 1
    made[ROOM] = table.rows * table.row_bytes() + 2 * NUMBER * (numbers + here * table.dim)
    if table.trainable:
        made[TOUCHES] += world * here + all_of_them
        gradient = WIRE_BYTES[step.wire.gradient]
        made[REDUCE] = (world - 1) * here * (table.dim * gradient + ID)
        made[REDUCES] = float(world > 1)
        made[MEMORY] += 2 * made[REDUCE] + all_of_them * _update_bytes(table, table.dim)
        made[ROOM] += made[REDUCE]
    made[ROOM] = ceil(made[ROOM])
    return made


def whole(table: TableLoad, step: Step, widths: tuple[int, ...], home: Home) -> tuple[np.ndarray, np.ndarray]:
    """What a table split into columns of these widths (one: not split) asks of everyone, and of each holder."""
    world, batch = step.world, step.batch_size
    ids, wire = batch * table.hotness, step.wire.bytes(table.trainable)
    everyone, holders = np.zeros(QUANTITIES), np.zeros((len(widths), QUANTITIES))
    numbers = batch * table.vectors * table.dim
    everyone[[MEMORY, ROOM]] = 2 * NUMBER * numbers, ceil(2 * NUMBER * numbers)
    everyone[[TOUCHES, CALLS]] = len(widths) * (ids + batch * table.vectors), 1
    if world > 1:
        everyone[[IDS_OUT, IN, EXCHANGES]] = ids * ID * len(widths), numbers * wire, 1
    touched, moved = table.distinct(ids * world), _moved(table, ids * world, home)
    for holder, width in zip(holders, widths, strict=True):
        part = batch * table.vectors * width
        if world > 1:
            holder[[IDS_OUT, IDS_IN]] = -ids * ID, (world - 1) * ids * ID
            holder[[IN, OUT]] = -part * wire, (world - 1) * part * wire
        _add_rows(holder, table, step, width, touched, table.rows, moved, home)
        holder[MEMORY] += 2 * NUMBER * part * world
        holder[TOUCHES] = _touches(table, world * ids, touched)
        holder[ROOM] += ceil(2 * NUMBER * part * world)
    return everyone, holders


def rowwise(table: TableLoad, step: Step, count: int, home: Home) -> tuple[np.ndarray, np.ndarray]:
    """What a table whose rows are split over `count` devices asks of everyone, and of each holder."""
    world, batch = step.world, step.batch_size
    ids, wire = batch * table.hotness, step.wire.bytes(table.trainable)
    here, all_of_them = table.distinct(ids), table.distinct(ids * world)
    everyone, holder = np.zeros(QUANTITIES), np.zeros(QUANTITIES)
    numbers = batch * table.vectors * table.dim
    everyone[MEMORY] = NUMBER * (2 * numbers + 3 * here * table.dim)
    everyone[[TOUCHES, CALLS]] = 2 * ids, 1
    everyone[ROOM] = ceil(2 * NUMBER * (numbers + here * table.dim))
    part, touched = max(here / count, 1.0), max(all_of_them / count, 1.0)  # the fullest holder of few rows has one
    if world > 1:
        everyone[[IDS_OUT, IN, EXCHANGES]] = here * ID, here * table.dim * wire, 1
        holder[[IDS_OUT, IDS_IN]] = -part * ID, (world - 1) * part * ID
        holder[[IN, OUT]] = -part * table.dim * wire, (world - 1) * part * table.dim * wire
    moved = _moved(table, ids * world, home) / count
    _add_rows(holder, table, step, table.dim, touched, ceil(table.rows / count), moved, home)
    holder[MEMORY] += 2 * NUMBER * world * part * table.dim
    holder[TOUCHES] = _touches(table, world * part, touched)
    holder[ROOM] += ceil(2 * NUMBER * world * part * table.dim)
    return everyone, np.tile(holder, (count, 1))


def _add_rows(
    holder: np.ndarray, table: TableLoad, step: Step, width: int, touched: float, rows: int, moved: float, home: Home
) -> None:  # fmt: skip
    """Rows that are read and updated, and the room they take, on the device or on its host."""
    update = _update_bytes(table, width) if table.trainable else 0
    holder[HOST if home.host else MEMORY] += touched * (width * table.element + update)
    size = table.row_bytes(width)
    if table.dynamic and not home.host and step.cluster.kind != "cpu":
        size += ON_CARD
    if home.cache is None:
        holder[HOST_ROOM if home.host else ROOM] += rows * size
        return
    hot, cold = ceil(home.cache * rows), table.cold_row_bytes
    holder[[ROOM, HOST_ROOM]] += hot * (size + SLOT) + rows * ENTRY, 0 if table.on_disk else (rows - hot) * cold
    holder[[HOST, MEMORY]] += moved * cold, 2 * moved * size


def _moved(table: TableLoad, ids: float, home: Home) -> float:
    """Rows that come to devices for so many ids, and as many go."""
    return 0.0 if home.cache is None else table.missed(ids, ceil(home.cache * table.rows))


def _touches(table: TableLoad, asked: float, touched: float) -> float:
    """What a holder does one by one: look up what is asked of it; where rows are trained, sort as much and update."""
    return 2 * asked + touched if table.trainable else asked


def _update_bytes(table: TableLoad, width: int) -> int:
    """A row and its state, read and written."""
    return 2 * (width * (table.element + table.state_per_element) + table.state_per_row)


def phases(totals: np.ndarray, step: Step) -> list[np.ndarray]:
    """Seconds [..., device] of each of `PHASES`, from quantities [..., quantity, device]."""
    cluster, per_byte = step.cluster, step.cluster.seconds_per_byte
    exchanges, reduces, calls = (np.minimum(totals[..., each, :], 1) for each in SHARED)
    return [
        totals[..., MEMORY, :] / cluster.bandwidth,
        totals[..., TOUCHES, :] * cluster.touch,
        totals[..., HOST, :] / (cluster.host_bandwidth or 1.0),
        np.maximum(totals[..., IDS_OUT, :], totals[..., IDS_IN, :]) * per_byte,
        np.maximum(totals[..., OUT, :], totals[..., IN, :]) * per_byte,
        totals[..., REDUCE, :] * cluster.reduce_seconds_per_byte,
        cluster.latency * (3 * exchanges + reduces),
        cluster.calls * calls,
    ]


def seconds(totals: np.ndarray, step: Step) -> np.ndarray:
    """Seconds [..., device] of a step on each device; the step takes as long as the slowest."""
    return sum(phases(totals, step), np.zeros(()))
