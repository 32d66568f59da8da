"""What do rows on servers cost, what do they hide, and what survives when processes are killed?

    python benchmarks/servers.py --json --save             # everything but memory_growth: about a quarter of an hour
    python benchmarks/servers.py --json --only delay       # parts: see --help
    python benchmarks/servers.py --json --only memory      # ten minutes; --memory-minutes 1 for a look
    python benchmarks/servers.py --quick                   # does it run at all?

Servers are processes on this machine, reached over loopback. README.md tells how each figure is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from machine import load
from question import (
    PARTLY,
    Options,
    about,
    add_cache,
    add_parts,
    keep,
    note,
    options_of,
    parsed,
    picture,
    tell,
    today,
    with_before,
)

WITH = {  # the options that a part runs with, and tells
    "delay": ("passes", "steps"),
    "auc": ("seeds",),
    "scale": ("passes", "steps"),
    "rows": ("rounds", "seconds"),
    "peer": ("rounds", "seconds"),
    "disk": ("rounds", "seconds"),
    "kills": ("kills",),
    "memory": ("memory_minutes",),
}
PARTS = tuple(WITH)
QUICK = {"passes": 1, "steps": 50, "kills": 3, "memory_minutes": 0.2, "seeds": 1, "seconds": 0.1, "rounds": 1}
GOALS = {
    "delay_hidden": (">=", 0.8),
    "auc_gap": (">=", -0.001),
    "virtual_scale": (">=", 0.95),
    "vs_valkey": (">=", 5.0),
    "server_vs_local": (">=", 0.4),
    "mmap_vs_memory": ("<=", 1.3),
    "kills_survived": (">=", 20),
    "updates_lost": ("<=", 0),
    "updates_doubled": ("<=", 0),
    "longest_pause_s": ("<=", 5.0),
    "memory_growth": ("<=", 0.02),
}
REPORTED = ("hybrid_vs_sync",)


def measure(args: Options) -> dict[str, Any]:
    """The figures of all parts that are wanted, and under `parts` what they are made of."""
    figures: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for part in args.only:
        note(f"-- {part}")
        beside = load()
        found = work_of(part, args)()
        parts[part] = {**found, "ran_with": {**{name: getattr(args, name) for name in WITH[part]}, "load": beside}}
        figures |= {key: found[key] for key in (*GOALS, *REPORTED) if key in found}
    return {**figures, **about(args, [], ["torch", "numpy"]), "parts": parts}


def work_of(part: str, args: Options) -> Callable[[], dict[str, Any]]:
    """What measures a part; heavy libraries load with it."""
    if part in ("delay", "scale"):
        import servers_training

        run = servers_training.delay if part == "delay" else servers_training.scale
        return lambda: run(args.cache, args.passes, args.steps)
    if part == "auc":
        import servers_auc

        return lambda: servers_auc.gaps(args.cache, args.seeds)
    if part in ("rows", "peer", "disk"):
        import servers_rows

        runs = {"rows": servers_rows.beside_local, "peer": servers_rows.beside_peer, "disk": servers_rows.on_disk}
        return lambda: runs[part](args.rounds, args.seconds)
    import servers_survival

    if part == "kills":
        return lambda: servers_survival.kills(args.kills)
    return lambda: servers_survival.memory(60 * args.memory_minutes)


def lines(answer: dict[str, Any]) -> str:
    """A figure a line, with its goal."""
    found = []
    for key in (*GOALS, *REPORTED):
        if key in answer:
            sense, goal = GOALS.get(key, ("", ""))
            value = answer[key]
            found.append(f"{key:<18}{'absent' if value is None else format(value, '.4g'):>10}  {sense} {goal}".rstrip())
    return "\n".join(found)


def arguments() -> Options:
    parser = options_of(__doc__, PARTLY)
    add_parts(parser, PARTS)
    parser.add_argument("--quick", action="store_true", help="one short pass each: figures mean nothing")
    parser.add_argument("--passes", type=int, default=8, help="of training, each kind in turn")
    parser.add_argument("--steps", type=int, default=150, help="of a pass")
    parser.add_argument("--seeds", type=int, default=3, help="of runs whose AUC is compared")
    parser.add_argument("--rounds", type=int, default=40, help="of row rates, each kind in turn")
    parser.add_argument("--seconds", type=float, default=0.25, help="of a round")
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--memory-minutes", type=float, default=10.0)
    add_cache(parser)
    args = parsed(parser, QUICK)
    if args.only == list(PARTS) and not args.quick:
        args.only = [part for part in PARTS if part != "memory"]  # it is asked for by name
    return args


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save:
        merged = with_before(answer, f"servers-{today()}", ["parts"])
        keep(merged, f"servers-{today()}")
        picture(merged, "servers_plot", "servers")
    tell(answer, args, lines)


if __name__ == "__main__":
    main()
