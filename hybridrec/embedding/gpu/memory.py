"""Whether tables and the state of their optimizer fit a card and its host: told before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch

from hybridrec import host_memory
from hybridrec.embedding.gpu.cold_file import disk_of, free_on_disk
from hybridrec.embedding.hash_store import capacity_of
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE
from hybridrec.embedding.table import Table
from hybridrec.optim.rule import RowRule

PLACE = torch.int32.itemsize  # of each row, while its gradients are grouped
SLOT = 2 * torch.int32.itemsize  # of each row on the card, where others are on the host: whose it is, and when used
ENTRY = torch.int32.itemsize  # of each row, where some are on the host: where it is
KEPT = 37  # bytes of each slot of a dynamic table: id, score, its place in the index, and that among those free
FIRST_SLOTS = 1 << 14  # of a dynamic table, before any row needs more
MOST_SLOTS = 2**31 - 2
STEP = 1 << 30  # bytes that a dynamic table takes at once, where what is needed is less
MOST_NAMED = 3  # tables in a message
FEWER_ROWS = (
    "cache= or where='host' for the largest tables, rows of half the size with dtype=torch.bfloat16, fewer rows=, or "
    "device='cpu'"
)
LESS_STATE = (
    "RowWiseAdagrad, which keeps one number per row, SGD, which keeps none, cache= or where='host' for the largest "
    "tables, or fewer rows="
)
FEWER_SLOTS = (
    "a smaller capacity=, which evicts sooner, where='host' for the largest tables, rows of half the size with "
    "dtype=torch.bfloat16, or RowWiseAdagrad, which keeps one number per row"
)
SMALLER_CACHE = (
    "a smaller cache= for the largest tables, rows of half the size with dtype=torch.bfloat16, or RowWiseAdagrad, "
    "which keeps one number per row"
)
MORE_HOST = (
    "a larger cache, a smaller type for cold rows such as cold=torch.int8, fewer rows=, an optimizer with less state, "
    "path=, a directory on a disk for cold rows, or more memory for the host or its container"
)
MORE_DISK = (
    "path= on another disk, a larger cache, a smaller type for cold rows such as cold=torch.int8, fewer rows=, or an "
    "optimizer with less state"
)

Made = TypeVar("Made")


def table_bytes(table: Table, share: Share = WHOLE) -> int:
    """What the rows of a table, or of a share of it, take on a card at first, with the place that each has in a step.

    A dynamic table takes more as rows come.

    >>> table_bytes(Table("item", dim=8, rows=100)), table_bytes(Table("item", dim=8, rows=100), Share(0, 4))
    (3600, 900)
    """
    if table.dynamic:
        return dynamic_bytes(table, min(capacity_of(table, share), FIRST_SLOTS))
    rows, size = share.rows_of(table.fixed_rows), share.dim_of(table.dim) * table.dtype.itemsize + PLACE
    return rows * size if table.cache is None else table.cached(rows) * (size + SLOT) + rows * ENTRY


def dynamic_bytes(table: Table, slots: int, rule: RowRule | None = None) -> int:
    """What so many slots of a dynamic table take on a card, with the state of a rule, if any.

    >>> dynamic_bytes(Table("user", dim=8, capacity=10**9), slots=1000)
    73000
    """
    state = state_bytes(table, rule, WHOLE, slots) if rule else 0
    return slots * (table.dim * table.dtype.itemsize + PLACE + KEPT) + state


def reach_of(table: Table, capacity: int, device: torch.device) -> int:
    """The slots of a dynamic table that get addresses: its capacity, or all that a card could have memory for."""
    if device.type != "cuda":
        return capacity
    most = torch.cuda.get_device_properties(device).total_memory // dynamic_bytes(table, 1)
    return min(capacity, max(FIRST_SLOTS, most))


def next_slots(there: int, needed: int, most: int, slot_bytes: int) -> int:
    """How many slots to have when so many are needed: twice as many as there are, or STEP more bytes if that is less.

    Growing copies no row, so that large steps save nothing; they would only keep memory from other tables.

    >>> next_slots(1000, 1001, most=10**9, slot_bytes=256), next_slots(10**8, 10**8 + 1, most=10**9, slot_bytes=256)
    (2000, 104194304)
    >>> next_slots(1000, 5000, most=4000, slot_bytes=256)
    4000
    """
    more = min(there, STEP // slot_bytes)
    return min(most, max(needed, there + more))


def state_bytes(table: Table, rule: RowRule, share: Share = WHOLE, rows: int | None = None) -> int:
    """What a row optimizer keeps beside the rows of a table, or of a share of it: float32, whatever they are.

    That is beside so many `rows`, by default all those of a fixed table that a card has.

    >>> from hybridrec.optim.rule import StateColumn
    >>> state_bytes(Table("item", dim=8, rows=100), RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),)))
    400
    """
    widths = sum(column.width(share.dim_of(table.dim)) for column in rule.state)
    if rows is None:
        rows = share.rows_of(table.fixed_rows)
        rows = rows if table.cache is None else table.cached(rows)
    return rows * widths * torch.float32.itemsize


def cold_bytes(table: Table, rule: RowRule | None = None, share: Share = WHOLE) -> int:
    """What a host has in memory of a fixed table with a cache, or of a share: rows that are not hot, and their state.

    >>> cold_bytes(Table("item", dim=8, rows=100, cache=25)), cold_bytes(Table("item", dim=8, rows=100))
    (2400, 0)
    >>> cold_bytes(Table("item", dim=8, rows=100, cache=25, cold=torch.int8))
    900
    """
    return 0 if table.path is not None else _not_hot(table, rule, share)


def file_bytes(table: Table, rule: RowRule | None = None, share: Share = WHOLE) -> int:
    """The same where the table has a path: what is in files there.

    >>> file_bytes(Table("item", dim=8, rows=100, cache=25, path="rows")), file_bytes(Table("item", dim=8, rows=100))
    (2400, 0)
    """
    return 0 if table.path is None else _not_hot(table, rule, share)


def _not_hot(table: Table, rule: RowRule | None, share: Share) -> int:
    if table.cache is None:
        return 0
    rows, dim = share.rows_of(table.fixed_rows), share.dim_of(table.dim)
    widths = sum(column.width(dim) for column in rule.state) if rule is not None else 0
    return (rows - table.cached(rows)) * (table.cold_row_bytes(dim) + widths * torch.float32.itemsize)


def free_bytes(device: torch.device) -> int | None:
    """What can still be allocated on a card: what nobody has, and what torch holds for later; None on the CPU."""
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def refuse_rows(held: Iterable[tuple[Table, Share]], device: torch.device, free: int | None) -> None:
    """Raise if the rows of these shares of tables cannot fit into `free` bytes; those on the host need none.

    >>> refuse_rows([(Table("item", dim=8, rows=100), Share())], torch.device("cuda", 0), free=2000)
    Traceback (most recent call last):
    ValueError: the rows of 1 table cannot fit: 3,600 bytes are needed on cuda:0, and 2,000 are free; the largest: \
item (3,600). What helps: cache= or where='host' for the largest tables, rows of half the size with \
dtype=torch.bfloat16, fewer rows=, or device='cpu'
    """
    sizes = {table.name: table_bytes(table, share) for table, share in held if not table.on_host}
    refuse("the rows", sizes, device, free, FEWER_ROWS)


def refuse_state(sizes: Iterable[tuple[str, int]], device: torch.device, free: int | None) -> None:
    """Raise if the optimizer state of tables, so many bytes each, cannot fit into `free` bytes."""
    refuse("the optimizer state", added(sizes), device, free, LESS_STATE)


def refuse_cold_rows(held: Iterable[tuple[Table, Share]]) -> None:
    """Raise if the rows of these shares of tables that are not hot cannot fit the host, or the disk they are for."""
    held = list(held)
    refuse_cold("the cold rows", {table.name: cold_bytes(table, None, share) for table, share in held})
    refuse_files("the cold rows", [(table, file_bytes(table, None, share)) for table, share in held])


def refuse_cold_state(wanted: Iterable[tuple[Table, Share, RowRule | None, RowRule]]) -> None:
    """Raise if what a new rule keeps beside rows that are not hot, in place of an old one's, cannot fit there."""
    wanted, what = list(wanted), "the optimizer state of cold rows"
    sizes = [(t.name, cold_bytes(t, new, share) - cold_bytes(t, old, share)) for t, share, old, new in wanted]
    refuse_cold(what, added(sizes))
    refuse_files(what, [(t, file_bytes(t, new, share) - file_bytes(t, old, share)) for t, share, old, new in wanted])


def refuse_cold(what: str, sizes: Mapping[str, int]) -> None:
    """Raise if these bytes by table are more than the host may give: who takes them all the same may be killed."""
    cold = {name: size for name, size in sizes.items() if size > 0}
    available = host_memory.available() if cold else None
    if host_memory.lacks(sum(cold.values()), available):
        there = f"in memory of the host, and {available:,} are available, of which a tenth stays free"
        raise ValueError(_lacking(what, cold, there, MORE_HOST))


def refuse_files(what: str, wanted: Iterable[tuple[Table, int]]) -> None:
    """Raise if these bytes of tables with a path are more than is free on one of their disks."""
    by_disk: dict[int, list[tuple[Table, int]]] = {}
    for table, size in wanted:
        if table.path is not None and size > 0:
            by_disk.setdefault(disk_of(table.path), []).append((table, size))
    for tables in by_disk.values():
        sizes, folder = added((table.name, size) for table, size in tables), str(tables[0][0].path)
        if sum(sizes.values()) > (free := free_on_disk(folder)):
            there = f"on the disk of {folder}, and {free:,} are free"
            raise ValueError(_lacking(what, sizes, there, MORE_DISK))


def refuse(what: str, sizes: Mapping[str, int], device: torch.device, free: int | None, remedy: str) -> None:
    """Raise if these bytes by table are more than those that are free; nothing where that is not known."""
    if free is not None and sum(sizes.values()) > free:
        raise ValueError(lacking(what, sizes, device, free, remedy))


def lacking(what: str, sizes: Mapping[str, int], device: torch.device, free: int | None, remedy: str) -> str:
    """What is needed, what there is, who needs most, and what helps."""
    return _lacking(what, sizes, f"on {device}, and {'too few' if free is None else f'{free:,}'} are free", remedy)


def _lacking(what: str, sizes: Mapping[str, int], there: str, remedy: str) -> str:
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:MOST_NAMED]
    named = ", ".join(f"{name} ({size:,})" for name, size in largest)
    tables = f"{len(sizes)} table{'s' * (len(sizes) != 1)}"
    return (
        f"{what} of {tables} cannot fit: {sum(sizes.values()):,} bytes are needed {there}; the largest: {named}. What "
        f"helps: {remedy}"
    )


def allocated(make: Callable[[], Made], what: str, name: str, size: int, device: torch.device, remedy: str) -> Made:
    """What `make` allocates; where the card has too little after all, the error tells as much as the one before."""
    try:
        return make()
    except torch.OutOfMemoryError as error:
        raise ValueError(lacking(what, {name: size}, device, free_bytes(device), remedy)) from error


def added(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes by name: tables of several collections may share one."""
    found: dict[str, int] = {}
    for name, size in sizes:
        found[name] = found.get(name, 0) + size
    return found
