"""How good are the planner's plans, and how long does it take?

    python benchmarks/planner.py --json --save    # everything: about half a minute
    python benchmarks/planner.py --quick          # does it run at all?

`planner_gap`: seconds of a step as the cost model predicts them, over those of the best plan there is, found by trying
every one; the worst of `--cases` random small cases. `plan_seconds`: time for 2,000 tables on 1,024 devices, one core.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
from question import Options, about, keep, options_of, parsed, tell

from hybridrec.parallel import CannotFit, Cluster, FeatureLoad, TableLoad, Workload, make_plan, predict
from hybridrec.parallel.reference import least_seconds

QUICK = {"cases": 3, "tables": 20, "nodes": 1}


def random_table(draw: random.Random, name: str, most_rows: float) -> TableLoad:
    """Sizes, hotness, state and repetition over wide ranges."""
    rows, hot = int(10 ** draw.uniform(0.5, most_rows)), draw.choice([1, 1, 2, 10, 40, 100])
    growth = ((1e3, 10 ** draw.uniform(1, 3)), (1e6, 10 ** draw.uniform(3, 6))) if draw.random() < 0.5 else ()
    return TableLoad(
        name,
        rows=rows,
        dim=draw.choice([1, 8, 16, 32, 64, 128]),
        features=(FeatureLoad(name, float(hot), draw.choice(["sum", "mean", "none"]) if hot > 1 else "sum"),),
        element=draw.choice([4, 2]),
        state_per_element=draw.choice([0, 4]),
        state_per_row=draw.choice([0, 4]),
        trainable=draw.random() < 0.9,
        dynamic=draw.random() < 0.2,
        growth=growth,
    )


def small_case(seed: int) -> tuple[Workload, Cluster]:
    """Few tables on few devices, of which many have hardly enough memory."""
    draw = random.Random(seed)
    nodes, devices = draw.choice([(1, 2), (1, 3), (1, 4), (2, 1), (2, 2)])
    count = draw.randint(3, {2: 6, 3: 5, 4: 4}[nodes * devices])
    tables = tuple(random_table(draw, f"t{i}", 7.5) for i in range(count))
    kind = draw.choice(["cpu", "A100-40", "H100"]) if count < 5 else "cpu"
    need = sum(table.rows * table.row_bytes() for table in tables) / (nodes * devices)
    batch = 2 ** draw.randint(10, 16)
    buffers = sum(16 * batch * table.vectors * table.dim for table in tables)
    memory = need * draw.uniform(1.1, 2) + buffers * draw.uniform(1, 2) if draw.random() < 0.6 else 80e9
    latency = draw.choice([0, 5e-6])
    text, changes = f"{nodes}x{devices}x{kind}", {"latency_inside": latency, "latency_between": 2 * latency}
    changes |= {"calls": 0.0}  # all plans have them, so they would only hide a gap
    return Workload(tables, batch), Cluster.parse(text, memory=memory, **changes)


def gap(seed: int) -> float:
    """Predicted seconds over the least ones; 1 where nothing fits and the planner says so."""
    work, cluster = small_case(seed)
    least = least_seconds(work, cluster)
    try:
        return predict(make_plan(work, cluster), work, cluster).step / least
    except CannotFit:
        return float("inf") if np.isfinite(least) else 1.0


def large(tables: int, nodes: int) -> dict[str, Any]:
    """One large plan: its time, and how even it is."""
    draw = random.Random(0)
    work = Workload(tuple(random_table(draw, f"t{i}", 8.0) for i in range(tables)), 1024)
    cluster = Cluster.parse(f"{nodes}x8xH100")
    start = time.perf_counter()
    plan = make_plan(work, cluster)
    taken, found = time.perf_counter() - start, predict(plan, work, cluster)
    return {"seconds": taken, "slowest_over_mean": found.step / float(np.mean(found.seconds)), "step": found.step}


def measure(args: Options) -> dict[str, Any]:
    gaps = [gap(seed) for seed in range(args.cases)]
    plan = large(args.tables, args.nodes)
    return {
        "planner_gap": max(gaps),
        "plan_seconds": plan["seconds"],
        "gap_mean": float(np.mean(gaps)),
        "gap_over_1.01": sum(each > 1.01 for each in gaps),
        "worst_case": int(np.argmax(gaps)),
        "large": {"tables": args.tables, "devices": 8 * args.nodes, **plan},
        **about(args, ["cases"], ["numpy"]),
    }


def lines(answer: dict[str, Any]) -> str:
    """The figures for people."""
    return "\n".join(f"{key} {answer[key]:.3f}" for key in ("planner_gap", "plan_seconds", "gap_mean"))


def arguments() -> Options:
    parser = options_of(__doc__, saves="keep the answer in results/")
    parser.add_argument("--quick", action="store_true", help="few cases: figures mean nothing")
    parser.add_argument("--cases", type=int, default=200)
    parser.set_defaults(tables=2_000, nodes=128)
    return parsed(parser, QUICK)


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save:
        keep(answer, f"planner-{answer['date']}")
    tell(answer, args, lines)


if __name__ == "__main__":
    main()
