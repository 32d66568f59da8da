"""How fast is a training step over many embedding tables on the CPU, beside FBGEMM, TorchRec and torch.nn?

    python benchmarks/embedding_cpu.py --json --save                  # everything: about half an hour
    python benchmarks/embedding_cpu.py --json --only nn,dynamic       # parts: see --help
    python benchmarks/embedding_cpu.py --json --settings d128-hot10 --passes 2
    python benchmarks/embedding_cpu.py --quick --no-install           # does it run at all?

26 tables of 100,000 rows, batch 8192, power-law ids, sum; rows of 16 and 128 columns, bags of 1 id and of 0 to 20.
A step is forward, backward from a fixed gradient, and row update. README.md has the rest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import embedding_workload as workload
import numpy as np
import perf_counters
import torch
from embedding_figures import Load, Measured, figures, reasons
from embedding_jobs import NEEDS, PARTS, Job, checks, contenders, jobs, memory, thread_counts
from embedding_runs import Passes, Runner, take_turns
from embedding_step import Task
from embedding_table import markdown
from embedding_workload import Setting, Shape
from machine import cores, machine
from peers.environment import Absent

HERE = Path(__file__).parent
SETTINGS = [Setting(dim, hot) for hot in (1, 10) for dim in (16, 128)]
QUICK = {"tables": 3, "rows": 1_000, "batch": 64, "passes": 1, "warm": 1, "reps": 3}
COUNTED = ("ours_rowwise_adagrad", "fbgemm_rowwise_adagrad", "ours_adagrad", "nn_adagrad")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole answer; without right answers of ours, no figure."""
    shape = Shape(args.tables, args.rows, args.batch)
    base = Task("", args.settings[0], shape, str(args.cache), args.threads, args.warm, args.reps, args.reps)
    loads = {hot: Load.of(workload.load(shape, hot, args.cache)) for hot in {s.hot for s in args.settings}}
    runner = Runner(args.venvs or args.cache / "venvs", not args.no_install)
    counts = thread_counts(cores())
    planned = jobs(args.only, base, args.settings, counts)
    correct = check(planned, runner)
    answer: dict[str, Any] = {"correct": correct, "absent": {}, "failed": {}, **about(args, loads)}
    if not all(found["passed"] for found in correct.values()):
        return answer
    passes, failed = take_turns(planned, args.passes, runner.run, note)
    measured = Measured(passes, args.settings, shape, loads, counts, args.threads)
    extra, missing = beside_the_clock(args, base, runner)
    return {
        **figures(measured),
        **extra,
        **answer,
        "absent": {**reasons(failed), **missing},
        "failed": failed,
        "versions": {**answer["versions"], **versions(passes)},
        "parts": summary(passes),
    }


def check(planned: list[Job], runner: Runner) -> dict[str, Any]:
    """Ours beside torch.nn, for every contender of ours in every setting."""
    found: dict[str, Any] = {}
    for job in checks(planned):
        try:
            found[str(job)] = runner.run(job)
        except Absent as reason:
            found[str(job)] = {"passed": False, "reason": str(reason)}
        note(f"check of {job}: {found[str(job)]}")
    return found


def beside_the_clock(args: argparse.Namespace, base: Task, runner: Runner) -> tuple[dict[str, Any], dict[str, str]]:
    """The parts that are not timed: bytes per row, and hardware counters."""
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    if "memory" in args.only:
        try:
            found["memory"] = runner.run(memory(base))
            found["bytes_per_row_overhead"] = found["memory"]["bytes_per_row"]
        except Absent as reason:
            absent["bytes_per_row_overhead"] = str(reason)
    if "counters" in args.only:
        reason = perf_counters.why_absent()
        if reason:
            absent["counters"] = reason
        else:
            found["counters"] = {s.name: counters(replace(base, setting=s), args.only, runner) for s in args.settings}
    return found, absent


def counters(task: Task, parts: list[str], runner: Runner) -> dict[str, Any]:
    """Instructions and cache misses per step of the contenders that these parts run."""
    needed = {name for part in parts for name in NEEDS[part]} & set(COUNTED)
    found: dict[str, Any] = {}
    for job in [job for job in contenders(task, []) if job.name in needed]:
        try:
            found[job.name] = perf_counters.per_step(
                lambda reps, prefix, job=job: runner.run(replace(job, task=replace(job.task, reps=reps)), prefix),
                task.reps,
            )
        except Absent as reason:
            note(f"no counters of {job}: {reason}")
    return found


def summary(passes: Passes) -> dict[str, Any]:
    """Per setting and job: the best pass, and every pass."""
    found: dict[str, Any] = {}
    for setting, jobs_of_setting in passes.items():
        found[setting] = {}
        for job, answers in jobs_of_setting.items():
            fields = [field for field in ("step_ms", "forward_ms", "bytes_per_s") if field in answers[0]]
            one = {field: (max if field == "bytes_per_s" else min)(a[field] for a in answers) for field in fields}
            rss = {"rss_gib": max(a["rss_gib"] for a in answers)} if "rss_gib" in answers[0] else {}
            found[setting][job] = {**one, **rss, "passes": [round(a[fields[0]], 3) for a in answers]}
    return found


def versions(passes: Passes) -> dict[str, str]:
    """What the contenders said of themselves."""
    answers = [a for of_setting in passes.values() for of_job in of_setting.values() for a in of_job]
    return {name: version for a in answers for name, version in a.get("versions", {}).items() if name != "torch"}


def about(args: argparse.Namespace, loads: dict[int, Load]) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    kept = ("tables", "rows", "batch", "passes", "reps", "warm")
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        **{name: getattr(args, name) for name in kept},
        "usual_threads": args.threads,
        "per_step": {f"hot{hot}": asdict(load) for hot, load in sorted(loads.items())},
    }


def save(answer: dict[str, Any]) -> None:
    """results/embedding_cpu-DATE.json, and its picture."""
    (HERE / "results" / f"embedding_cpu-{answer['date']}.json").write_text(json.dumps(answer, indent=1) + "\n")
    try:
        from embedding_plot import draw
    except ModuleNotFoundError as missing:
        note(f"no picture: {missing}")
    else:
        draw(answer, HERE.parent / "docs" / "images" / "embedding_cpu.svg")


def broken_of_ours(answer: dict[str, Any]) -> list[str]:
    """What ours should have answered and did not: unlike an absent peer, a failure."""
    found = {job: reason for job, reason in answer["failed"].items() if " ours_" in job}
    found |= {key: reason for key, reason in answer["absent"].items() if key == "bytes_per_row_overhead"}
    return [f"{name}: {reason}" for name, reason in found.items()]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def part_names(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown part {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    return chosen


def setting_names(text: str) -> list[Setting]:
    try:
        return [Setting.parse(name) for name in text.split(",")]
    except ValueError as reason:
        raise argparse.ArgumentTypeError(str(reason)) from None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object, last line")
    parser.add_argument("--only", type=part_names, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--settings", type=setting_names, default=SETTINGS, help="such as d16-hot1,d128-hot10")
    parser.add_argument("--quick", action="store_true", help="small tables and one short pass: figures mean nothing")
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each table")
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--reps", type=int, default=9, help="timed steps of a pass: their median counts")
    parser.add_argument("--warm", type=int, default=3, help="steps before them")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "hybridrec-benchmarks")
    parser.add_argument("--venvs", type=Path, help="where the peers' environments are kept (default: in the cache)")
    parser.add_argument("--no-install", action="store_true", help="use only peers that are already installed")
    parser.add_argument("--save", action="store_true", help="keep the answer in results/ and its picture in docs/")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.cache.mkdir(parents=True, exist_ok=True)
    answer = measure(args)
    correct = all(found["passed"] for found in answer["correct"].values())
    if args.save and correct:
        save(answer)
    print(json.dumps(answer) if args.json else markdown(answer))
    if not correct:
        raise SystemExit("no figures: the answers of hybridrec are not those of torch.nn")
    if broken := broken_of_ours(answer):
        raise SystemExit("; ".join(broken))


if __name__ == "__main__":
    main()
