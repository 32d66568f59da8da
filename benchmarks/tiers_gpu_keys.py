"""The work of `tiers_gpu.py`: calls on a table at a given load, and the ids of whole batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from gpu_models import sample
from gpu_profile import call_us
from tiers_gpu_models import shape_of
from torch import Tensor

from hybridrec.embedding.gpu.homes import bits
from hybridrec.ops.hash_index import triton as hash_index
from hybridrec.ops.hash_index.lines import of as words
from hybridrec.ops.hash_index.spans import Spans, of_counts
from hybridrec.ops.hash_rows.lines import home_of, of
from hybridrec.ops.hash_rows.triton_rows import HashRows, Policy
from hybridrec.ops.philox import reference_torch as philox
from hybridrec.ops.row_gather.triton import gather, rows_of_program

WARM = 3
KEY, SCALE = 7, 0.05  # of the values that rows begin with
AHEAD = 2_000_000  # cycles that a device is kept busy, so that all launches of a call wait for it


def keys(args: Any, load: float, device: str) -> dict[str, Any]:
    """Billions of ids a second that are found, and taken in, where the index is this full."""
    count, at = args.keys, torch.device(device)
    buckets = hash_index.buckets_for(args.rows)
    held = int(buckets * words.ENTRIES * load) - count
    rows = HashRows.empty([Policy(held + count)], at)
    rows.tables[0].index = hash_index.empty(buckets, at)  # as full as is asked for, not as the capacity wants it
    rows.indexes = hash_index.lines_of([rows.tables[0].index], at)
    spans, weight = runs([count], [0], at), torch.zeros(held + count, args.dim, device=at)
    homes = home(weight)
    for first in range(0, held, count):
        part = min(count, held - first)
        rows.prepare(spread(torch.arange(first, first + part, device=at)), runs([part], [0], at), evict=False)
    known = [spread(torch.randperm(held, device=at)[:count]) for _ in range(4)]
    new = spread(torch.arange(held, held + count, device=at))
    check(rows, known[0], new, spans)
    out = torch.empty(count, args.dim, device=at)

    def find(number: int) -> None:
        gathered(weight, rows.find(known[number % 4], spans), out)

    def slots(number: int) -> None:
        rows.find(known[number % 4], spans)

    def touch(number: int) -> None:
        rows.prepare(known[number % 4], spans, evict=False, homes=homes)

    def insert(_: int) -> None:
        rows.prepare(new, spans, evict=False, homes=homes)

    def undo() -> None:
        rows.erase(0, new)

    took = {"find": timed(find, args.steps, at), "slots": timed(slots, args.steps, at)}
    took["insert"] = timed(insert, args.steps, at, undo)
    insert(0)
    assert int(rows.lacking) == 0, "the index has room for all"
    drawn = philox.uniform(KEY, new[:99].cpu(), args.dim, SCALE)
    assert torch.equal(weight[rows.find(new, spans)[:99]].cpu(), drawn), "rows have the values of their ids"
    undo()
    answer: dict[str, Any] = {f"{name}_gkv_s": count / ms / 1e6 for name, ms in took.items()}
    if args.profile:
        answer["profile"] = {"find": call_us(slots), "touch": call_us(touch), "insert": call_us(insert, undo)}
    return answer


def home(weight: Tensor) -> Tensor:
    """The line of a table whose rows are these, without state."""
    numbers = weight.data_ptr(), weight.shape[1], home_of.FLOAT32, home_of.UNIFORM, bits(SCALE * 2.0**-23), KEY
    line = [*numbers, *[0] * (home_of.LENGTH - len(numbers))]
    return torch.tensor([line]).to(weight.device)


def runs(counts: list[int], tables: list[int], device: torch.device) -> Spans:
    """Runs of ids, as lookups have them; few of a program where the interpreter goes over each lane."""
    return of_counts(counts, tables, device, ids=64 if device.type == "cpu" else 512)


def spread(numbers: Tensor) -> Tensor:
    """Ids all over the range, a different one for each number."""
    return numbers * 0x1E3779B97F4A7C15


def check(rows: HashRows, known: Tensor, new: Tensor, spans: Spans) -> None:
    """What is there is found with its id, and what is not is not."""
    slots = rows.find(known, spans)
    assert bool((slots >= 0).all()), "ids that were taken in are found"
    assert torch.equal(rows.tables[0].ids[slots], known), "a slot is that of its id"
    assert bool((rows.find(new, spans) < 0).all()), "others are not found"


def gathered(weight: Tensor, slots: Tensor, out: Tensor) -> None:
    """Rows copied one after the other."""
    dim, each = weight.shape[1], rows_of_program(weight.shape[1])
    programs = -(-len(slots) // each)
    line = torch.tensor([[weight.data_ptr(), 0, len(slots), 0]]).to(weight.device, non_blocking=True)
    firsts = torch.tensor([0, programs], dtype=torch.int32).to(weight.device, non_blocking=True)
    gather(slots, line, firsts, programs, out, dim, weight.dtype, 4 if dim % 4 == 0 else 1)


def batches(args: Any, model: str, device: str) -> dict[str, Any]:
    """ms to prepare a batch of a model: of new ids, of known ones, and where a fifth of the rows is all there is."""
    shape, at = shape_of(model, 500 if device == "cpu" else None), torch.device(device)
    given = [sample(shape, args.batch, number, device).ids for number in range(args.batches)]
    spans = runs([args.batch * hot for _, hot in shape.features], [table for table, _ in shape.features], at)
    took = {}
    wide = HashRows.empty([Policy(count) for count, _ in shape.tables], at)

    def prepare(rows: HashRows, evict: bool) -> Callable[[int], None]:
        def step(number: int) -> None:
            rows.prepare(given[number % len(given)], spans, evict=evict)
            rows.advance()

        return step

    took["first"] = timed(prepare(wide, False), 1, at, warm=0)
    for number in range(len(given)):
        prepare(wide, False)(number)
    took["known"] = timed(prepare(wide, False), args.steps, at)
    took["known_room_asked"] = timed(prepare(wide, True), args.steps, at)
    profiled = call_us(prepare(wide, False)) if args.profile else None
    seen = [max(size // 5, most(given, shape, table)) for table, size in enumerate(wide.standing[:, of.SIZE].tolist())]
    del wide
    tight = HashRows.empty([Policy(count) for count in seen], at)
    for number in range(len(given)):
        prepare(tight, True)(number)
    took["full"] = timed(prepare(tight, True), args.steps, at)
    assert not bool(tight.standing[:, of.FAULTS].any()), "a batch fits"
    took["evicted_of_rows"] = int(tight.standing[:, of.EVICTED].sum()) / max(1, sum(seen))
    return took if profiled is None else {**took, "profile": {"known": profiled}}


def most(given: list[Tensor], shape: Any, table: int) -> int:
    """The most distinct ids that a batch has of a table."""
    batch = len(given[0]) // shape.ids
    found = 0
    for ids in given:
        parts = ids.split([batch * hot for _, hot in shape.features])
        mine = [part for (of_table, _), part in zip(shape.features, parts, strict=True) if of_table == table]
        found = max(found, len(torch.cat(mine).unique()))
    return found


def timed(
    work: Callable[[int], None],
    steps: int,
    device: torch.device,
    undo: Callable[[], None] | None = None,
    warm: int = WARM,
) -> float:
    """The median milliseconds of a call; what undoes it is not timed.

    Who undoes it waits for the device, which is then given something to do: as in training, the host is ahead of it.
    """
    times = []
    for number in range(warm + steps):
        if undo is not None and device.type == "cuda":
            torch.cuda._sleep(AHEAD)
        begin = clock(device)
        work(number)
        end = clock(device)
        if undo is not None:
            undo()
        times.append((begin, end))
    return median(passed(*pair) for pair in times[warm:])


def clock(device: torch.device) -> Any:
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def passed(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return 1e3 * (end - begin)
    end.synchronize()
    return begin.elapsed_time(end)
