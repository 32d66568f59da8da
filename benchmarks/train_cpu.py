"""How fast does hybridrec train DeepFM from a Parquet file on the CPU, and what do its Trainer and checkpoints cost?

    python benchmarks/train_cpu.py --json --save                  # everything: about a quarter of an hour
    python benchmarks/train_cpu.py --json --only plain,wait       # parts: see --help
    python benchmarks/train_cpu.py --quick                        # does it run at all?

`vs_plain_pytorch`: samples/s from file to updated weights, over those of the same model in plain PyTorch.
`step_overhead`: our Python as a share of a step. `loader_wait`: waiting for data as a share of a step.
`save_stall_steps`, `restore_vs_disk`: checkpoints of a table of 10 M rows. README.md has the rest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import train_workload as workload
from machine import machine
from train_figures import PARTS, figures, kinds, lines
from train_runs import Failed, Passes, Plan, run, take_turns
from train_workload import Task

HERE = Path(__file__).parent
QUICK = {"rows": 4_096, "short_rows": 2_048, "batch": 256, "ids": 1_000, "table_rows": 20_000}
QUICK |= {"passes": 1, "steps": 10, "threads": 1}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole answer; without right answers of ours, no figure."""
    chosen = kinds(args.only)
    path = workload.write(args.rows, args.ids, args.cache)
    short = workload.write(args.short_rows, args.ids, args.cache)
    sizes = (args.batch, args.ids, args.threads, str(args.cache), args.steps, args.table_rows)
    plan = Plan(Task("", str(path), *sizes), short)
    correct = check(plan)
    answer: dict[str, Any] = {"correct": correct, "failed": {}, **about(args)}
    if not correct["passed"]:
        return answer
    passes, failed = take_turns(plan, chosen, args.passes, note)
    return {**figures(passes), **answer, "failed": failed, "parts": summary(passes)}


def check(plan: Plan) -> dict[str, Any]:
    """The losses of ours and the peers, step by step."""
    try:
        found = run(plan.task("check"))
    except Failed as reason:
        found = {"passed": False, "reason": str(reason)}
    note(f"check: {found}")
    return found


def summary(passes: Passes) -> dict[str, Any]:
    """Per job: what the pass that counts said, and the telling number of every pass."""
    found: dict[str, Any] = {}
    for kind, answers in passes.items():
        field, best = ("rows_per_s", max) if "rows_per_s" in answers[0] else ("share", min)
        if kind.startswith("save"):
            field, best = "save_stall_steps", min
        kept = best(answers, key=lambda answer: answer[field])
        found[kind] = {**kept, "passes": [answer[field] for answer in answers]}
    return found


def about(args: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    kept = ("rows", "short_rows", "batch", "ids", "table_rows", "threads", "passes", "steps")
    versions = {"torch": torch.__version__, "pyarrow": pa.__version__, "numpy": np.__version__}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **versions},
        **{name: getattr(args, name) for name in kept},
    }


def save(answer: dict[str, Any]) -> None:
    """results/train_cpu-DATE.json, and its picture."""
    (HERE / "results" / f"train_cpu-{answer['date']}.json").write_text(json.dumps(answer, indent=1) + "\n")
    try:
        from train_plot import draw
    except ModuleNotFoundError as missing:
        note(f"no picture: {missing}")
    else:
        draw(answer, HERE.parent / "docs" / "images" / "train_cpu.svg")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def part_names(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown part {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object, last line")
    parser.add_argument("--only", type=part_names, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few rows and one pass: figures mean nothing")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the file")
    parser.add_argument("--short-rows", type=int, default=131_072, help="rows for the row-wise peer and the check")
    parser.add_argument("--ids", type=int, default=100_000, help="ids of each feature, and rows of its table")
    parser.add_argument("--table-rows", type=int, default=10_000_000, help="rows of the table that is saved")
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="steps of a stretch, where steps are timed")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "hybridrec-benchmarks")
    parser.add_argument("--save", action="store_true", help="keep the answer in results/ and its picture in docs/")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.cache.mkdir(parents=True, exist_ok=True)
    answer = measure(args)
    correct = answer["correct"]["passed"]
    if args.save and correct:
        save(answer)
    print(json.dumps(answer) if args.json else lines(answer))
    if not correct:
        raise SystemExit("no figures: the losses of hybridrec are not those of plain PyTorch")
    if answer["failed"]:
        raise SystemExit("; ".join(f"{kind}: {reason}" for kind, reason in answer["failed"].items()))


if __name__ == "__main__":
    main()
