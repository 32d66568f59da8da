"""How well does hybridrec train on many ranks: how fast beside one, and beside TorchRec, and what travels?

    python benchmarks/parallel.py --json --save                    # everything: about a quarter of an hour
    python benchmarks/parallel.py --json --only scaling,wire       # parts: see --help
    python benchmarks/parallel.py --quick --no-install             # does it run at all?

`scaling_2`: samples/s of two ranks over those of one. `vs_torchrec`: over those of TorchRec's DistributedModelParallel.
`collectives_per_step`, `wire_bytes_vs_naive`: what ranks send each other for lookups. `overlap`: the share of that time
in which they compute. `planner_error`: how far steps of tables alone are from what the planner predicts. DLRM, 26
tables of 100,000 rows, batch 8192 per rank, one thread each. README.md has the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parallel_figures import ONCE, PARTS, figures, kinds, lines
from parallel_runs import Runner, said
from parallel_workload import Task
from peers.environment import Absent
from question import (
    PARTLY,
    Options,
    about,
    add_cache,
    add_parts,
    add_peers,
    keep,
    note,
    options_of,
    parsed,
    picture,
    tell,
    today,
    with_before,
)
from turns import Passes, take_turns

QUICK = {"tables": 5, "rows": 1_000, "batch": 256, "passes": 1, "warm": 2, "steps": 3, "stretches": 1}
SIZES = ("tables", "rows", "batch", "warm", "steps", "stretches")
TOLERANCE = 1e-5  # of losses, which are near 0.7


def measure(args: Options) -> dict[str, Any]:
    """The whole answer; without right answers of ours, no figure."""
    base = Task("", 2, str(args.cache), **{name: getattr(args, name) for name in SIZES})
    runner = Runner(args.venvs or args.cache / "venvs", not args.no_install)
    correct = check(base, runner, "torchrec" in args.only)
    answer: dict[str, Any] = {"correct": correct, "failed": {}, **about(args, [*SIZES, "passes"], ["torch", "numpy"])}
    if not correct["passed"]:
        return answer
    tasks = {kind: task_of(base, kind) for kind in kinds(args.only)}
    once = {kind: task for kind, task in tasks.items() if kind in ONCE}
    timed = {kind: task for kind, task in tasks.items() if kind not in ONCE}
    counts, without = take_turns(once, 1, runner.run, said)
    passes, failed = take_turns(timed, args.passes, runner.run, said)
    passes |= counts
    return {**figures(passes), **answer, "failed": {**without, **failed}, "parts": summary(passes)}


def task_of(base: Task, kind: str) -> Task:
    """What the ranks of a job do."""
    if kind in ("ours_1", "weights", "check_alone"):
        return replace(base, kind=kind, world=1)
    if kind.startswith("planned_"):
        return replace(base, kind=kind, world=int(kind[-1]))
    if kind.startswith("count_"):
        return replace(base, kind=kind, tables=int(kind.removeprefix("count_")), rows=100, batch=64, steps=4)
    return replace(base, kind=kind, latency_ms=0.0 if kind == "overlap_now" else base.latency_ms)


def check(base: Task, runner: Runner, peer: bool) -> dict[str, Any]:
    """The losses of two ranks, of one process and of the peer, step by step from the same weights."""
    losses, reasons = {}, {}
    for kind in ("weights", "check_alone", "check", "check_row", *(["torchrec_check"] if peer else [])):
        try:
            losses |= {kind: found["losses"]} if "losses" in (found := runner.run(task_of(base, kind))) else {}
        except Absent as reason:
            reasons[kind] = str(reason)
    note(f"check: {losses}, {reasons}")
    return judged(losses, reasons)


def judged(losses: dict[str, list[float]], reasons: dict[str, str]) -> dict[str, Any]:
    """Whether the ranks lose what the others do; a peer that is not there is no judge."""
    ours = losses.get("check", [])
    others = {kind: values for kind, values in losses.items() if kind != "check"}
    apart = {kind: max(abs(a - b) for a, b in zip(ours, each, strict=True)) for kind, each in others.items() if ours}
    passed = "check_alone" in apart and max(apart.values()) <= TOLERANCE
    return {"passed": passed, "apart": apart, "losses": losses, "reasons": reasons}


def summary(passes: Passes) -> dict[str, Any]:
    """Per job: what the pass that counts said, and the length of a step in every pass."""
    found: dict[str, Any] = {}
    for kind, answers in passes.items():
        best = min(answers, key=lambda answer: answer.get("step_ms", 0.0))
        times = [answer["step_ms"] for answer in answers if "step_ms" in answer]
        found[kind] = {**best, **({"passes_ms": times} if times else {})}
    return found


def problems(answer: dict[str, Any]) -> list[str]:
    """What ours should have answered and did not: unlike an absent peer, a failure."""
    if not answer["correct"]["passed"]:
        return ["no figures: two ranks do not lose what one process loses"]
    return [f"{kind}: {reason}" for kind, reason in answer["failed"].items() if not kind.startswith("torchrec")]


def arguments() -> Options:
    parser = options_of(__doc__, PARTLY)
    add_parts(parser, PARTS)
    parser.add_argument("--quick", action="store_true", help="small tables and one short pass: figures mean nothing")
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each table")
    parser.add_argument("--batch", type=int, default=8_192, help="rows of each rank")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--warm", type=int, default=8, help="steps before the clock")
    parser.add_argument("--steps", type=int, default=16, help="steps of a stretch")
    parser.add_argument("--stretches", type=int, default=4, help="stretches of a pass: the fastest counts")
    add_cache(parser)
    add_peers(parser)
    return parsed(parser, QUICK)


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save and answer["correct"]["passed"]:
        merged = with_before(answer, f"parallel-{today()}", ["parts", "by_median", "samples_per_s"])
        keep(merged, f"parallel-{today()}")
        picture(merged, "parallel_plot", "parallel")
    tell(answer, args, lines, problems(answer))


if __name__ == "__main__":
    main()
