"""How fast does hybridrec train DeepFM from a Parquet file on the CPU, and what do its Trainer and checkpoints cost?

    python benchmarks/train_cpu.py --json --save                  # everything: about a quarter of an hour
    python benchmarks/train_cpu.py --json --only plain,wait       # parts: see --help
    python benchmarks/train_cpu.py --quick                        # does it run at all?

`vs_plain_pytorch`: samples/s from file to updated weights, over those of the same model in plain PyTorch.
`step_overhead`: our Python as a share of a step. `loader_wait`: waiting for data as a share of a step.
`save_stall_steps`, `restore_vs_disk`: checkpoints of a table of 10 M rows. README.md has the rest.
"""

from __future__ import annotations

from typing import Any

import train_workload as workload
from question import Options, about, add_cache, add_parts, keep, note, options_of, parsed, picture, tell
from train_figures import PARTS, figures, kinds, lines
from train_runs import Plan, run, said
from train_workload import Task
from turns import Failed, Passes, take_turns

QUICK = {"rows": 4_096, "short_rows": 2_048, "batch": 256, "ids": 1_000, "table_rows": 20_000}
QUICK |= {"passes": 1, "steps": 10, "threads": 1}
KEPT = ("rows", "short_rows", "batch", "ids", "table_rows", "threads", "passes", "steps")


def measure(args: Options) -> dict[str, Any]:
    """The whole answer; without right answers of ours, no figure."""
    path = workload.write(args.rows, args.ids, args.cache)
    short = workload.write(args.short_rows, args.ids, args.cache)
    sizes = (args.batch, args.ids, args.threads, str(args.cache), args.steps, args.table_rows)
    plan = Plan(Task("", str(path), *sizes), short)
    correct = check(plan)
    answer: dict[str, Any] = {"correct": correct, "failed": {}, **about(args, KEPT, ["torch", "pyarrow", "numpy"])}
    if not correct["passed"]:
        return answer
    passes, failed = take_turns({kind: plan.task(kind) for kind in kinds(args.only)}, args.passes, run, said)
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


def problems(answer: dict[str, Any]) -> list[str]:
    """Wrong answers of ours, or parts without one."""
    if not answer["correct"]["passed"]:
        return ["no figures: the losses of hybridrec are not those of plain PyTorch"]
    return [f"{kind}: {reason}" for kind, reason in answer["failed"].items()]


def arguments() -> Options:
    parser = options_of(__doc__)
    add_parts(parser, PARTS)
    parser.add_argument("--quick", action="store_true", help="few rows and one pass: figures mean nothing")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the file")
    parser.add_argument("--short-rows", type=int, default=131_072, help="rows for the row-wise peer and the check")
    parser.add_argument("--ids", type=int, default=100_000, help="ids of each feature, and rows of its table")
    parser.add_argument("--table-rows", type=int, default=10_000_000, help="rows of the table that is saved")
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="steps of a stretch, where steps are timed")
    add_cache(parser)
    return parsed(parser, QUICK)


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save and answer["correct"]["passed"]:
        keep(answer, f"train_cpu-{answer['date']}")
        picture(answer, "train_plot", "train_cpu")
    tell(answer, args, lines, problems(answer))


if __name__ == "__main__":
    main()
