"""How fast is a training step over many embedding tables on the CPU, beside FBGEMM, TorchRec and torch.nn?

    python benchmarks/embedding_cpu.py --json --save                  # everything: about half an hour
    python benchmarks/embedding_cpu.py --json --only nn,dynamic       # parts: see --help
    python benchmarks/embedding_cpu.py --json --settings d128-hot10 --passes 2
    python benchmarks/embedding_cpu.py --quick --no-install           # does it run at all?

26 tables of 100,000 rows, batch 8192, power-law ids, sum; rows of 16 and 128 columns, bags of 1 id and of 0 to 20.
A step is forward, backward from a fixed gradient, and row update. README.md has the rest.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict, replace
from typing import Any

import embedding_workload as workload
import perf_counters
from embedding_figures import Load, Measured, figures, reasons
from embedding_jobs import NEEDS, PARTS, Job, checks, contenders, jobs, memory, thread_counts
from embedding_runs import Passes, Runner, take_turns
from embedding_step import Task
from embedding_table import markdown
from embedding_workload import Setting, Shape
from machine import cores
from peers.environment import Absent
from question import Options, about, add_cache, add_parts, add_peers, keep, note, options_of, parsed, picture, tell

SETTINGS = [Setting(dim, hot) for hot in (1, 10) for dim in (16, 128)]
QUICK = {"tables": 3, "rows": 1_000, "batch": 64, "passes": 1, "warm": 1, "reps": 3}
KEPT = ("tables", "rows", "batch", "passes", "reps", "warm")
COUNTED = ("ours_rowwise_adagrad", "fbgemm_rowwise_adagrad", "ours_adagrad", "nn_adagrad")


def measure(args: Options) -> dict[str, Any]:
    """The whole answer; without right answers of ours, no figure."""
    shape = Shape(args.tables, args.rows, args.batch)
    base = Task("", args.settings[0], shape, str(args.cache), args.threads, args.warm, args.reps, args.reps)
    loads = {hot: Load.of(workload.load(shape, hot, args.cache)) for hot in {s.hot for s in args.settings}}
    runner = Runner(args.venvs or args.cache / "venvs", not args.no_install)
    counts = thread_counts(cores())
    planned = jobs(args.only, base, args.settings, counts)
    answer: dict[str, Any] = {"correct": check(planned, runner), "absent": {}, "failed": {}}
    answer |= {**about(args, KEPT, ["torch", "numpy"]), "usual_threads": args.threads}
    answer |= {"per_step": {f"hot{hot}": asdict(load) for hot, load in sorted(loads.items())}}
    if not correct(answer):
        return answer
    passes, failed = take_turns(planned, args.passes, runner.run)
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


def beside_the_clock(args: Options, base: Task, runner: Runner) -> tuple[dict[str, Any], dict[str, str]]:
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


def problems(answer: dict[str, Any]) -> list[str]:
    """What ours should have answered and did not: unlike an absent peer, a failure."""
    if not correct(answer):
        return ["no figures: the answers of hybridrec are not those of torch.nn"]
    found = {job: reason for job, reason in answer["failed"].items() if " ours_" in job}
    found |= {key: reason for key, reason in answer["absent"].items() if key == "bytes_per_row_overhead"}
    return [f"{name}: {reason}" for name, reason in found.items()]


def correct(answer: dict[str, Any]) -> bool:
    return all(found["passed"] for found in answer["correct"].values())


def setting_names(text: str) -> list[Setting]:
    try:
        return [Setting.parse(name) for name in text.split(",")]
    except ValueError as reason:
        raise ArgumentTypeError(str(reason)) from None


def arguments() -> Options:
    parser = options_of(__doc__)
    add_parts(parser, PARTS)
    parser.add_argument("--settings", type=setting_names, default=SETTINGS, help="such as d16-hot1,d128-hot10")
    parser.add_argument("--quick", action="store_true", help="small tables and one short pass: figures mean nothing")
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each table")
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--reps", type=int, default=9, help="timed steps of a pass: their median counts")
    parser.add_argument("--warm", type=int, default=3, help="steps before them")
    add_cache(parser)
    add_peers(parser)
    return parsed(parser, QUICK)


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save and correct(answer):
        keep(answer, f"embedding_cpu-{answer['date']}")
        picture(answer, "embedding_plot", "embedding_cpu")
    tell(answer, args, markdown, problems(answer))


if __name__ == "__main__":
    main()
