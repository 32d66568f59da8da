"""How much slower is a step on rows in memory-mapped files than on rows in memory, and how soon is a table open?

    python benchmarks/disk.py --json --save     # about two minutes
    python benchmarks/disk.py --quick           # does it run at all?

One dynamic table of `--rows` rows of 16 columns, which fits memory in both; Adagrad; batches of 20,480 ids by a power
law. A step is a lookup in training, the backward from a fixed gradient, and the row update. `mmap_vs_memory` is seconds
of a step on disk over those in memory: steps alternate in one process, of each batch first one, then the other. Of each
kind the lower quartile counts, for others may use the machine. Before, both take steps that must leave equal rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from question import Options, about, keep, options_of, parsed, tell

import hybridrec as hr

QUICK = {"rows": 20_000, "steps": 3, "passes": 1}
DIM, BATCH, SPREAD = 16, 20_480, 2_654_435_761


class Trained:
    """A table and its optimizer, with all rows there."""

    def __init__(self, rows: int, path: str | None) -> None:
        self.emb = hr.EmbeddingCollection([hr.Table("user", dim=DIM, capacity=2 * rows, path=path)])
        self.optimizer = hr.optim.Adagrad(self.emb, lr=0.05)
        self.grad = torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            for part in ids_of(np.arange(1, rows + 1)).split(1 << 16):
                self.emb({"user": part})

    def step(self, ids: torch.Tensor) -> list[float]:
        """Seconds of the lookup and of the update, then of all; and processor time of all."""
        begun, start = time.process_time(), time.perf_counter()
        out = self.emb({"user": ids}).flat
        looked = time.perf_counter()
        out.backward(self.grad)
        back = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        return [looked - start, end - back, end - start, time.process_time() - begun]


def ids_of(ranks: np.ndarray) -> torch.Tensor:
    """Ids that lie apart, by their rank."""
    return torch.from_numpy(ranks.astype(np.int64) * SPREAD % 2**40)


def batches(rows: int, count: int, seed: int) -> list[torch.Tensor]:
    """The n-th id is drawn about as often as 1 / n."""
    draw = np.random.default_rng(seed)
    return [ids_of(rows ** draw.random(BATCH)) for _ in range(count)]


def equal(pair: Sequence[Trained], rows: int) -> bool:
    for ids in batches(rows, 5, seed=1):
        for each in pair:
            each.step(ids)
    ids = ids_of(np.arange(1, min(rows, 200_000)))
    memory, disk = (each.emb["user"].read(ids) for each in pair)
    return torch.equal(memory.rows, disk.rows) and torch.equal(memory.state["sum"], disk.state["sum"])


def measure(args: Options, folder: str) -> dict[str, Any]:
    """The whole answer, for a table in this folder."""
    rows, steps = args.rows, args.steps
    pair = Trained(rows, None), Trained(rows, folder)
    correct, ratios, processor, parts = equal(pair, rows), [], [], []
    for number in range(args.passes):
        found: tuple[list, list] = [], []
        for place, ids in enumerate(batches(rows, steps, seed=2 + number)):
            for which in (0, 1) if place % 2 else (1, 0):
                found[which].append(pair[which].step(ids))
        memory, disk = (np.quantile(each, 0.25, axis=0) for each in found)
        ratios.append(float(disk[2] / memory[2]))
        processor.append(float(disk[3] / memory[3]))
        parts.append({"memory_ms": (1e3 * memory).tolist(), "disk_ms": (1e3 * disk).tolist()})
    del pair
    start = time.perf_counter()
    again = hr.EmbeddingCollection([hr.Table("user", dim=DIM, capacity=2 * rows, path=folder)])
    opened = time.perf_counter() - start
    return {
        "mmap_vs_memory": float(np.median(ratios)) if correct else None,
        "processor_time_ratio": float(np.median(processor)),
        "open_seconds": opened,
        "correct": correct and len(again["user"]) == rows,
        "ratios": ratios,
        "lookup_update_step_processor": parts,
        **about(args, ["rows", "threads"], ["torch"]),
    }


def lines(answer: dict[str, Any]) -> str:
    """The figures for people."""
    return "\n".join(f"{key} {answer[key]}" for key in ("mmap_vs_memory", "open_seconds", "correct"))


def arguments() -> Options:
    parser = options_of(__doc__, saves="keep the answer in results/")
    parser.add_argument("--quick", action="store_true", help="few rows: figures mean nothing")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--folder", help="where the table's files go; by default the folder for temporary files")
    parser.set_defaults(steps=120)
    return parsed(parser, QUICK)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        answer = measure(args, folder)
    if args.save:
        keep(answer, f"disk-{answer['date']}")
    tell(answer, args, lines)


if __name__ == "__main__":
    main()
