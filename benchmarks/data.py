"""How near is the loader to Arrow's raw decode, and how far from the loaders people use today?

    python benchmarks/data.py --json                          # everything: minutes, and about 9 GB of cache
    python benchmarks/data.py --json --only scalar,ragged     # parts: see --help
    python benchmarks/data.py --json --only ragged --scaling 1,2,4

The floor is a plain loop of `ParquetFile.read_row_group` over the same columns with as many threads.
Floor and loader (or peer and loader) take turns in one run; after a warm-up, the best of `--passes`
passes counts. README.md has the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import workloads
from machine import cpu_model
from peers.environment import PEERS, Absent, interpreter, talk
from question import Options, add_cache, add_parts, add_peers, keep, note, options_of, parsed, tell, today, versions

import hybridrec as hr

HERE = Path(__file__).parent
PARTS = ("scalar", "ragged", "string", "shuffle", *PEERS, "rss")
KEYS = [f"{name}_vs_arrow" for name in PARTS[:4]] + [peer.key for peer in PEERS.values()] + ["peak_rss_mb"]
Pass = Callable[[], int]  # one pass over the data; the rows it saw


def floor(path: Path) -> Pass:
    """Arrow alone: read every row group, keep nothing."""
    file = pq.ParquetFile(path)

    def run() -> int:
        return sum(file.read_row_group(g, use_threads=True).num_rows for g in range(file.num_row_groups))

    return run


def ours(path: Path, args: Options, shuffle: bool = False) -> Pass:
    """The loader, after one pass that checks its batches against the file."""
    ds = hr.data.parquet(str(path), label=workloads.LABEL, batch_size=args.batch, threads=args.threads)
    ds = ds.shuffle(seed=0) if shuffle else ds
    check(ds, path)

    def run() -> int:
        n = 0
        for batch in ds:
            n += len(batch)
        return n

    return run


def check(ds: Any, path: Path) -> None:
    """No speed without the right answer: clicks and the sum of ids (of strings: the count) are the file's."""
    file = pq.ParquetFile(path)
    names = workloads.id_columns(path)
    strings = pa.types.is_string(file.schema_arrow.field(names[0]).type)
    want = np.zeros(2, np.int64)
    for g in range(file.num_row_groups):
        table = file.read_row_group(g, columns=[workloads.LABEL, *names])
        want[0] += table[workloads.LABEL].to_numpy().sum(dtype=np.int64)
        for name in names:
            chunks = [c.flatten() if isinstance(c, pa.ListArray) else c for c in table[name].chunks]
            want[1] += sum(len(c) if strings else c.to_numpy().sum() for c in chunks)
    got = np.zeros(2, np.int64)
    for batch in ds:
        values = batch.ids.values
        got += [int(batch.label.sum()), values.numel() if strings else int(values.sum())]
    if not (got == want).all():
        raise ValueError(f"{path.name}: (clicks, ids) are {want.tolist()} in the file, {got.tolist()} in the batches")


def alternate(sides: dict[str, Callable[[], tuple[int, float]]], passes: int) -> dict[str, Any]:
    """Run every side once per round, after a round that does not count; rows/s of each pass, and the best."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    rows: dict[str, int] = {}
    for turn in range(passes + 1):
        for name, side in sides.items():
            n, seconds = side()
            if rows.setdefault("rows", n) != n:
                raise ValueError(f"{name} saw {n:,} rows, another side {rows['rows']:,}: they must read the same data")
            if turn:
                rates[name].append(n / seconds)
    return {
        **rows,
        **{f"{name}_rows_per_s": max(rate) for name, rate in rates.items()},
        **{f"{name}_passes": [round(r) for r in rate] for name, rate in rates.items()},
    }


def timed(run: Pass) -> Callable[[], tuple[int, float]]:
    def side() -> tuple[int, float]:
        start = time.perf_counter()
        rows = run()
        return rows, time.perf_counter() - start

    return side


def against_arrow(workload: str, parts: list[str], args: Options) -> dict[str, Any]:
    """Floor and loader by turns; `parts` are the workload itself, `shuffle`, or both."""
    pa.set_cpu_count(args.threads)
    path = workloads.write(workload, args.rows, args.cache)
    sides = {"arrow": timed(floor(path))}
    sides |= {part: timed(ours(path, args, shuffle=part == "shuffle")) for part in parts}
    found = alternate(sides, args.passes)
    for part in parts:
        found[f"{part}_vs_arrow"] = found[f"{part}_rows_per_s"] / found["arrow_rows_per_s"]
        found[f"{part}_vs_arrow_median"] = median(found[f"{part}_passes"]) / median(found["arrow_passes"])
    return found


def against_peer(name: str, args: Options) -> dict[str, Any]:
    """A peer in its own process and the loader in ours, by turns, over the same (shorter) ragged file."""
    peer = PEERS[name]
    python = interpreter(peer, args.venvs or args.cache / "venvs", not args.no_install)
    path = workloads.write("ragged", args.peer_rows, args.cache)
    with talk(peer, python, path, args.cache, (args.batch, args.threads, workloads.LABEL)) as conversation:
        found = alternate({"peer": conversation.run, "ours": timed(ours(path, args))}, args.passes)
    found[peer.key] = found["ours_rows_per_s"] / found["peer_rows_per_s"]
    return {**found, "versions": conversation.versions}


def memory(args: Options) -> dict[str, Any]:
    """Peak memory of a fresh process that streams a large file with shuffle."""
    path = workloads.write_bytes(int(args.rss_gb * 1e9), args.cache)
    command = [sys.executable, HERE / "rss.py", path, "--batch", args.batch, "--threads", args.threads]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def scaling(args: Options) -> dict[str, Any]:
    """The Arrow parts again for every thread count of --scaling."""
    found: dict[str, Any] = {}
    for threads in args.scaling:
        one = Options(**{**vars(args), "threads": threads})
        found[str(threads)] = {
            workload: against_arrow(workload, parts, one) for workload, parts in arrow_parts(args.only).items()
        }
        note(f"{threads} threads: done")
    return found


def arrow_parts(only: list[str]) -> dict[str, list[str]]:
    """Which loader runs share which file (and so which floor)."""
    wanted = {"scalar": ["scalar"], "ragged": ["ragged", "shuffle"], "string": ["string"]}
    chosen = {workload: [p for p in parts if p in only] for workload, parts in wanted.items()}
    return {workload: parts for workload, parts in chosen.items() if parts}


def measure(args: Options) -> dict[str, Any]:
    """The whole answer: the keys of the issue, then what is behind them."""
    parts: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for workload, chosen in arrow_parts(args.only).items():
        parts[workload] = against_arrow(workload, chosen, args)
        note(", ".join(f"{p} {parts[workload][f'{p}_vs_arrow']:.2f} of Arrow" for p in chosen))
    for name in [name for name in PEERS if name in args.only]:
        try:
            parts[name] = against_peer(name, args)
            note(f"{parts[name][PEERS[name].key]:.1f} times {name}")
        except Absent as reason:
            absent[PEERS[name].key] = str(reason)
            note(f"{name} is absent: {reason}")
    if "rss" in args.only:
        parts["rss"] = memory(args)
        note(f"peak {parts['rss']['peak_rss_mb']:,.0f} MB")
    if args.scaling:
        parts["scaling"] = scaling(args)
    answers = {key: value for part in parts.values() for key, value in part.items() if key in KEYS}
    return {**{key: answers.get(key) for key in KEYS}, "absent": absent, **about(args), "parts": parts}


def about(args: Options) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    return {
        "date": today(),
        **{name: getattr(args, name) for name in ("rows", "peer_rows", "batch", "threads", "passes")},
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions(["hybridrec", "torch", "pyarrow", "numpy"]),
    }


def lines(answer: dict[str, Any]) -> str:
    """The figures for people, or why there are none."""
    shown = {key: "not run" if answer[key] is None else f"{answer[key]:,.2f}" for key in KEYS}
    return "\n".join(f"{key:30} {value}" for key, value in {**shown, **answer["absent"]}.items())


def arguments() -> Options:
    parser = options_of(__doc__, saves="keep the answer as results/data-DATE.json too")
    add_parts(parser, PARTS)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--peer-rows", type=int, default=524_288, help="rows that peers (and we beside them) read")
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--scaling", type=lambda text: [int(n) for n in text.split(",")], help="thread counts: 1,2,4")
    parser.add_argument("--rss-gb", type=float, default=5.0, help="size of the file for the memory figure")
    add_cache(parser)
    add_peers(parser)
    return parsed(parser)


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save:
        keep(answer, f"data-{answer['date']}")
    tell(answer, args, lines)


if __name__ == "__main__":
    main()
