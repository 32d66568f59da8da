"""Training with rows on servers, for `servers.py`: what a network delay costs, and what a larger table does.

DLRM with layers of 64 and 32, 26 tables of dimension 16 on two servers, batches of 1,024 rows that are in memory. One
process trains, with a thread for every other core: servers and relay need the rest, and a thread that waits for its
turn keeps all others waiting. Passes of all kinds take turns, each with a model and rows of its own, and the best
stretch counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from question import note
from servers_processes import delayed, servers
from train_workload import DIM, HIDDEN, ID_NAMES, LR, write
from workloads import LABEL

import hybridrec as hr
from hybridrec.models import DLRM
from hybridrec.train import Callback, StepResult, Trainer, TrainOptions
from hybridrec.types import Batch

BATCH, SERVERS, STALENESS = 1_024, 2, 4
NEAR, DELAY = 0.0002, 0.002  # seconds one way: as in one rack, and what is added
IDS = 100_000  # distinct ids of a column
STRETCH = 25  # steps


class Data(NamedTuple):
    """Batches in memory, and what they have."""

    schema: Any
    batches: list[Batch]


class Clock(Callback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        self.times.append(time.perf_counter())


def data(cache: Path, batches: int, spread: int = 1) -> Data:
    """So many batches of the click file; its ids are multiplied by `spread`."""
    path = write(131_072 * -(-batches * BATCH // 131_072), IDS, cache)
    if spread > 1:
        path = _spread(path, spread)
    ds = hr.data.parquet(str(path), label=LABEL, batch_size=BATCH, threads=1)
    return Data(ds.schema, [batch for batch, _ in zip(ds, range(batches), strict=False)])


def _spread(path: Path, by: int) -> Path:
    target = path.with_stem(f"{path.stem}-by-{by}")
    if not target.exists():
        table = pq.read_table(path)
        for name in ID_NAMES:
            wide = pa.array(table[name].to_numpy() * by)
            table = table.set_column(table.column_names.index(name), name, wide)
        pq.write_table(table, target.with_suffix(".part"))
        target.with_suffix(".part").rename(target)
    return target


def stretches(data: Data, addresses: Sequence[str], staleness: int, capacity: int, steps: int) -> list[float]:
    """Milliseconds of a step in each stretch; those of the first one, in which rows are made, are left out."""
    torch.manual_seed(0)
    clock = Clock()
    model = DLRM(data.schema, dim=DIM, bottom=HIDDEN, top=HIDDEN, tables={"*": {"capacity": capacity}})
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.Adagrad(parameters, lr=LR),
        lambda module: hr.optim.Adagrad(module, lr=LR),
        callbacks=[clock],
        options=TrainOptions(progress="none", log_every=100),  # as in long runs
        servers=list(addresses),
        staleness=staleness,
    )
    trainer.fit(data.batches, epochs=None, steps=steps + STRETCH)
    marks = clock.times[STRETCH - 1 :: STRETCH]
    return [(after - before) / STRETCH * 1e3 for before, after in pairwise(marks)]


def in_turn(kinds: dict[str, Callable[[], list[float]]], passes: int) -> dict[str, list[float]]:
    """The stretches of all kinds, pass by pass in turn."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with threads(max(1, len(os.sched_getaffinity(0)) // 2)):
        for at in range(passes):
            for kind, run in kinds.items():
                found[kind] += run()
                note(f"pass {at + 1}, {kind}: {min(found[kind]):.2f} ms a step")
    return found


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it, so many threads compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def delay(cache: Path, passes: int, steps: int) -> dict[str, Any]:
    """`delay_hidden` and `hybrid_vs_sync`: near and far, a relay stands between trainer and servers.

    Near ones are not quite here, so that both relays do the same work: bytes that wait need a clock and a second look.
    """
    given = data(cache, 64)
    with servers(SERVERS) as there, delayed(there, NEAR) as near, delayed(there, NEAR + DELAY) as far:
        kinds = {
            f"{mode}_{where}": lambda staleness=staleness, at=at: stretches(given, at, staleness, IDS, steps)
            for mode, staleness in (("sync", 0), ("hybrid", STALENESS))
            for where, at in (("near", near), ("far", far))
        }
        found = in_turn(kinds, passes)
    best = {kind: min(times) for kind, times in found.items()}
    lost = {mode: best[f"{mode}_far"] - best[f"{mode}_near"] for mode in ("sync", "hybrid")}
    return {
        "delay_hidden": 1 - lost["hybrid"] / (2 * DELAY * 1e3),  # a lookup goes there and comes back
        "delay_hidden_of_sync": 1 - lost["hybrid"] / lost["sync"] if lost["sync"] > 0 else None,
        "hybrid_vs_sync": best["sync_far"] / best["hybrid_far"],
        "hybrid_vs_sync_without_delay": best["sync_near"] / best["hybrid_near"],
        "lost_ms": lost,
        "step_ms": best,
        "samples_per_s": {kind: BATCH / ms * 1e3 for kind, ms in best.items()},
        "stretches_ms": found,
    }


def scale(cache: Path, passes: int, steps: int) -> dict[str, Any]:
    """`virtual_scale`: the same rows of tables that are declared with 10^9 and with 10^14 parameters."""
    sizes = {name: declared // (len(ID_NAMES) * DIM) for name, declared in (("1e9", 10**9), ("1e14", 10**14))}
    given = {name: data(cache, 64, max(1, rows // IDS)) for name, rows in sizes.items()}
    with servers(SERVERS) as few, servers(SERVERS) as many:
        there = {"1e9": few, "1e14": many}
        kinds = {
            name: lambda name=name, rows=rows: stretches(given[name], there[name], STALENESS, rows, steps)
            for name, rows in sizes.items()
        }
        found = in_turn(kinds, passes)
    best = {name: min(times) for name, times in found.items()}
    return {
        "virtual_scale": best["1e9"] / best["1e14"],
        "rows_declared": sizes,
        "samples_per_s": {name: BATCH / ms * 1e3 for name, ms in best.items()},
        "stretches_ms": found,
    }
