"""What does it cost to admit a batch to rows in two tiers, and does the exchange fill the link to the host?

    python benchmarks/tiers_cache_gpu.py --json --save
    python benchmarks/tiers_cache_gpu.py --smoke        # does it run at all? on the CPU, by Triton's interpreter

Float32 rows of dimension 128 with one number of state each, a fifth of them hot. `link` is the exchange alone, by the
number of programs and of words that each has in hand, beside copies of as many bytes each way by the copy engines.
`exchange` is the same by the type in which cold rows are kept, with the bytes that a row has on the link. `admit` has
whole admissions by the share of distinct rows that are cold, launched one by one and as a graph. `warm` is a stream of
batches with power-law ids, each landed when the next has been admitted. Times are medians.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before kernels are defined

import torch
from machine import gpu, short_name
from question import Options, about, add_smoke, keep, note, options_of, parsed, tell
from torch import Tensor

from hybridrec.ops.row_cache.cache import Column, RowCache
from hybridrec.ops.row_cache.cache import of as at
from hybridrec.ops.row_cache.packing import packed_width
from hybridrec.ops.row_cache.triton import admit, land
from hybridrec.ops.row_cache.triton_rows import exchange

DIM, HOT = 128, 0.2
MOVERS, NUMBERS, COLD = (16, 32, 64, 128, 264), (1024, 2048, 4096), (0.0, 0.01, 0.05, 0.2, 1.0)
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
SMALL = {"rows": 400, "ids": 60, "reps": 1, "batches": 3}


def measure(args: Options) -> dict[str, Any]:
    """The whole answer."""
    device = torch.device("cpu" if args.smoke else "cuda")
    cache = made(args.rows, device)
    answer = about(args, ["rows", "ids", "reps", "batches"], ["torch", "triton"], gpu=gpu())
    answer["link_gb_s"] = link(cache, args)
    note(f"link: {answer['link_gb_s']}")
    answer["exchange_ms"] = {str(kept): exchanges(kept, args, device) for kept in TYPES}
    note(f"exchange: {answer['exchange_ms']}")
    answer["admit_ms"] = {share: admissions(cache, share, args) for share in (COLD[-2:] if args.smoke else COLD)}
    note(f"admit: {answer['admit_ms']}")
    answer["warm"] = warm(cache, args)
    return answer


def made(rows: int, device: torch.device, kept: torch.dtype = torch.float32) -> RowCache:
    """A cache whose cold rows are in pinned memory, in this type."""
    slots, cuda = int(rows * HOT), device.type == "cuda"
    cache = RowCache.make(rows, slots, device)
    for shape, dtype in (((DIM,), kept), ((), torch.float32)):
        widths = [packed_width(size, dtype) for size in shape]
        cold = torch.zeros(rows - slots, *widths, dtype=dtype, pin_memory=cuda)
        cache.columns.append(Column(torch.randn(slots, *shape, device=device), cold))
    return cache


def exchanges(kept: torch.dtype, args: Options, device: torch.device) -> dict[str, float]:
    """Milliseconds of an exchange of as many rows as a batch has ids, and the bytes of each on the link."""
    cache = made(int(args.ids / HOT), device, kept)
    places, victims = listed(cache, args.ids)
    return {"ms": timed(lambda: exchange(cache, places, victims), args.reps) * 1e3, "row_bytes": cache.cold_bytes}


def listed(cache: RowCache, count: int) -> tuple[Tensor, Tensor]:
    """So many places and slots at random, whose rows are to be exchanged."""
    cache.passing[at.WANTED], cache.passing[at.REFUSES] = count, 0
    sides = (torch.randperm(most)[:count].int() for most in (cache.places, cache.slots))
    places, victims = (side.to(cache.owner.device) for side in sides)
    return places, victims


def link(cache: RowCache, args: Options) -> dict[str, float]:
    """GB/s each way, by programs and words of each; and of the copy engines."""
    count = min(args.ids, cache.slots, cache.places)
    places, victims = listed(cache, count)
    size, found = count * cache.row_bytes / 1e9, {}
    for movers in MOVERS[:1] if args.smoke else MOVERS:
        for numbers in NUMBERS[:1] if args.smoke else NUMBERS:
            sizes = replace(cache.sizes, movers=movers, numbers=numbers)
            one = replace(cache, sizes=sizes)
            found[f"{movers} x {numbers}"] = size / timed(lambda one=one: exchange(one, places, victims), args.reps)
    return {**found, "copy engines": size / timed(copies(cache, count * cache.row_bytes), args.reps)}


def copies(cache: RowCache, size: int) -> Callable[[], None]:
    """So many bytes to the device, and from it, at the same time."""
    device = cache.owner.device
    here = [torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(2)]
    there = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
    side = torch.cuda.Stream() if device.type == "cuda" else None

    def both() -> None:
        there[0].copy_(here[0], non_blocking=True)
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                here[1].copy_(there[1], non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)

    return both


def admissions(cache: RowCache, share: float, args: Options) -> dict[str, float]:
    """Milliseconds of an admission with this share of its rows cold, and the rows that it moved; the rest is hot."""
    count = min(args.ids, cache.slots // 2)
    cold = int(count * share)
    fresh = torch.randperm(cache.places, device=cache.owner.device).long()
    rows = torch.empty(count, dtype=torch.int64, device=cache.owner.device)
    starts = cycle(range(0, max(1, cache.places - cold), max(1, cold)))
    base = torch.nonzero(cache.directory >= 0)[: count - cold, 0]
    far = torch.nonzero(cache.directory < 0)[:, 0]

    def fill() -> None:
        first = next(starts)
        rows[: count - cold], rows[count - cold :] = base, far[fresh[first : first + cold]]

    def once() -> None:
        land(cache, admit(cache, rows).number)

    before = cache.figures()
    found = {"launched": timed(once, args.reps, fill) * 1e3}
    after = cache.figures()
    found["moved"] = (after.moved - before.moved) / (after.admissions - before.admissions)
    if rows.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        found["graph"] = timed(graph.replay, args.reps, fill) * 1e3
    return found


def warm(cache: RowCache, args: Options) -> dict[str, float]:
    """Batches with power-law ids, after as many that warm up."""
    torch.manual_seed(0)
    device, names = cache.owner.device, torch.randperm(len(cache.directory))
    count = min(args.ids, cache.slots // 2)
    batches = [names[power_law(count, len(names))].to(device) for _ in range(2 * args.batches)]
    times, before = [], cache.figures()
    for number, rows in enumerate(batches):
        if number == args.batches:
            before = cache.figures()
        times.append(timed(lambda rows=rows: land(cache, admit(cache, rows).number - 1), 1, warm=0))
    after = cache.figures()
    ids, moved = after.ids - before.ids, after.moved - before.moved
    return {
        "hit_rate": 1 - (after.cold_ids - before.cold_ids) / max(ids, 1),
        "moved_a_batch": moved / args.batches,
        "ms": median(times[args.batches :]) * 1e3,
        "refused": after.refused - before.refused,
    }


def power_law(count: int, most: int, alpha: float = 1.05) -> Tensor:
    """Ranks of which rank r has a share like (r + 1) ** -alpha."""
    power = 1 - alpha
    drawn = (torch.rand(count, dtype=torch.float64) * ((most + 1) ** power - 1) + 1) ** (1 / power) - 1
    return drawn.long().clamp(0, most - 1)


def timed(work: Callable[[], object], reps: int, before: Callable[[], None] | None = None, warm: int = 1) -> float:
    """The median seconds of some work on the device, done so many times before to compile."""
    found = []
    for _ in range(warm + reps):
        if before is not None:
            before()
        _wait()
        begin = perf_counter()
        work()
        _wait()
        found.append(perf_counter() - begin)
    return median(found[warm:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def lines(answer: dict[str, Any]) -> str:
    """The answer for people."""
    link, made = answer["link_gb_s"], answer["warm"]
    best = max((name for name in link if name != "copy engines"), key=lambda name: link[name])
    told = [f"link: {link[best]:.1f} GB/s each way by {best}, {link['copy engines']:.1f} by the copy engines"]
    told += [f"exchange, cold rows {kept}: {each['ms']:.2f} ms" for kept, each in answer["exchange_ms"].items()]
    told += [f"admission, {share:.0%} cold: {ms}" for share, ms in answer["admit_ms"].items()]
    return "\n".join([*told, f"warm: {made['hit_rate']:.1%} of ids hot, {made['ms']:.2f} ms"])


def main() -> None:
    parser = options_of(__doc__, "keep the answer in results/")
    add_smoke(parser)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--ids", type=int, default=1_000_000, help="of a batch")
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--batches", type=int, default=64)
    args = parsed(parser, SMALL)
    answer = measure(args)
    if args.save:
        keep(answer, f"{answer['date']}_tiers_cache_{short_name(answer)}")
    tell(answer, args, lines)


if __name__ == "__main__":
    main()
