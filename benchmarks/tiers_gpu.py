"""How fast does one GPU train on tables that are dynamic, or larger than its memory?

    python benchmarks/tiers_gpu.py --json --save
    python benchmarks/tiers_gpu.py --json --save --only uvm,medium   # joins the file of the same day
    python benchmarks/tiers_gpu.py --smoke          # does it run at all? on the CPU, through Triton's interpreter

`keys`: one table, calls of 1,048,576 distinct ids, rows of 64 float32. `find_gkv_s` is finding them and copying their
rows, `insert_gkv_s` taking in as many new ones, with all that a training lookup decides, and writing their rows: G ids
a second, at several loads of the index. `batches`: what a training lookup of all ids of a model's batch takes before
rows are read, ms. `steps`: `dynamic_vs_fixed` is the time of whole training steps of the Small model, as CUDA graphs,
with dynamic tables that have seen all their ids over that with fixed ones. `tiered`: `tiered_warm` is the speed of
whole training steps, as CUDA graphs, with a fifth of the rows of fixed tables of a million and more on the card, over
that with all rows there: the least of the models. `uvm`: `tiered_vs_uvm` is how many times the time of such a step
FBGEMM takes with its caching table. `medium`: `medium_fp32` is the ms of a step of the Medium model in float32, 206 GiB
of rows over card and host, as a Trainer chooses it. Times are medians by the device's clock, of calls that wait for it
and not for the host. Figures come only after the answers were found right. A part that fails says so, and the others go
on. `--profile` adds what each kernel and the host take.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_process import Task, run
from machine import gpu, short_name
from question import (
    PARTLY,
    RESULTS,
    Options,
    about,
    add_parts,
    add_smoke,
    keep,
    note,
    options_of,
    parsed,
    picture,
    tell,
    with_before,
)
from tiers_gpu_models import TIERED

GOALS = {  # sense and bound
    "find_gkv_s": (">=", 3.0),
    "insert_gkv_s": (">=", 1.5),
    "dynamic_vs_fixed": ("<=", 1.8),
    "tiered_warm": (">=", 0.6),
    "tiered_vs_uvm": (">=", 1.5),
}
MODELS = {"batches": "small,criteo", "tiered": "small,criteo1tb", "uvm": "small_rowwise"}  # where none is named
DIVIDED = ("versions", "loads", "prepare_ms", "tiered", "uvm")  # keys of an answer that later runs add to
SMALL = {"rows": 200, "keys": 32, "batch": 2, "batches": 2, "steps": 1, "models": "criteo"}
CAP = 500  # rows of a table of a smoke run
MEDIUM_WARM = 32  # steps in which caches fill


def measure(args: Options) -> dict[str, Any]:
    """The whole answer."""
    if args.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined, so they are imported later
    modules = [name for name in ("torch", "triton") if importlib.util.find_spec(name)]
    kept = ["rows", "keys", "dim", "batch", "batches", "steps"]
    answer: dict[str, Any] = {**about(args, kept, modules, gpu=gpu()), "goals": GOALS, "failed": {}, "absent": {}}
    for part in args.only:
        begin = time.perf_counter()
        PARTS[part](args, answer)
        note(f"{part}: {time.perf_counter() - begin:.0f} s")
    return answer | figures(answer)


def tried(answer: dict[str, Any], what: str, work: Callable[[], Any]) -> Any:
    """What some work gives; None, and the reason among what failed, where it fails."""
    found = None
    try:
        found = work()
    except Exception as reason:
        answer["failed"][what] = f"{type(reason).__name__}: {reason}"[:1000]
    note(f"{what}: {answer['failed'].get(what, found)}")
    tidy()
    return found


def tidy() -> None:
    """The card is for what comes next, which may be another process."""
    import torch

    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def told(program: str, task: Task) -> dict[str, Any]:
    """What a process answers; RuntimeError with all that it said before where it ended badly."""
    found = run(program, task.to_json())
    if "crash" in found:
        raise RuntimeError(f"{found.pop('crash')}; before that: {found}")
    return found


def put(answer: dict[str, Any], key: str, name: str, found: dict[str, Any] | None) -> None:
    """Something found goes under a name among others of its kind."""
    if found is not None:
        answer.setdefault(key, {})[name] = found


# -- parts -----------------------------------------------------------------------------------------------------


def keys(args: Options, answer: dict[str, Any]) -> None:
    import tiers_gpu_keys as work

    for load in (0.5, 0.75, 0.95):
        found = tried(answer, f"load {load}", lambda load=load: work.keys(args, load, device(args)))
        put(answer, "loads", str(load), apart(answer, f"load {load}", found))


def batches(args: Options, answer: dict[str, Any]) -> None:
    import tiers_gpu_keys as work

    for name in models(args, "batches"):
        found = tried(answer, f"batches of {name}", lambda name=name: work.batches(args, name, device(args)))
        put(answer, "prepare_ms", name, apart(answer, name, found))


def steps(args: Options, answer: dict[str, Any]) -> None:
    import tiers_gpu_steps
    import torch

    torch.set_float32_matmul_precision("high")  # as a Trainer does it
    found = tried(answer, "steps", lambda: tiers_gpu_steps.steps(args, device(args)))
    answer |= {} if found is None else {"steps_ms": found}


def tiered(args: Options, answer: dict[str, Any]) -> None:
    for name in models(args, "tiered"):
        found = tried(answer, f"tiered {name}", lambda name=name: told("tiers_gpu_tiered.py", task_of(args, name)))
        put(answer, "tiered", name, found)


def uvm(args: Options, answer: dict[str, Any]) -> None:
    if reason := why_no_peer(args):
        answer["absent"]["fbgemm"] = reason
        note(f"no FBGEMM: {reason}")
    for name in models(args, "uvm"):
        task = task_of(args, name)
        ours = tried(answer, f"uvm {name}, ours", lambda task=task: told("tiers_gpu_tiered.py", task))
        peer = None if reason else tried(answer, f"uvm {name}, FBGEMM", lambda task=task: beside(task))
        if ours is not None and peer is not None:
            answer["versions"] |= peer["versions"]
            put(answer, "uvm", name, tried(answer, f"uvm {name}", lambda both=(ours, peer): compared(*both)))


def beside(task: Task) -> dict[str, Any]:
    """The peer's answer, as far as it came: a variant that it cannot do is no reason to lose the others."""
    found = run("peers/fbgemm_uvm_gpu.py", task.to_json())
    if not found.get("ms"):
        raise RuntimeError(f"no step was timed: {found}")
    return found


def compared(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """Our step beside the peer's fastest."""
    assert ours["ids_sum"] == peer["ids_sum"], "both trained on the same ids"
    best = min(peer["ms"]["step"].values())
    failures = {**peer["failures"], **({"ended early": peer["crash"]} if "crash" in peer else {})}
    mine = {key: ours[key] for key in ("hot_ms", "tiered_ms", "hit_rate")}
    return {"tiered_vs_uvm": best / ours["tiered_ms"], **mine, "uvm_ms": peer["ms"]["step"], "failures": failures}


def why_no_peer(args: Options) -> str | None:
    if args.smoke:
        return "a smoke run has no card"
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return "fbgemm_gpu cannot be imported; see benchmarks/README.md for what it needs"
    return None


def medium(args: Options, answer: dict[str, Any]) -> None:
    task = task_of(args, "medium_fp32", warm=1 if args.smoke else MEDIUM_WARM)
    found = tried(answer, "medium", lambda: largest(task))
    answer |= {} if found is None else {"medium": found}


def largest(task: Task) -> dict[str, Any]:
    """The answer for the largest batches that card and host have memory for, each size in a process of its own."""
    lacked: dict[str, str] = {}
    for batch in (task.batch, task.batch // 2):
        found = told("tiers_gpu_medium.py", replace(task, batch=batch))
        if "ms" in found:
            return {"lacked": lacked, **found}
        lacked[str(batch)] = found["lacked"]
    raise RuntimeError(f"no batch is small enough: {lacked}")


PARTS = {"keys": keys, "batches": batches, "steps": steps, "tiered": tiered, "uvm": uvm, "medium": medium}


def device(args: Options) -> str:
    return "cpu" if args.smoke else "cuda"


def models(args: Options, part: str) -> list[str]:
    return (args.models or MODELS[part]).split(",")


def task_of(args: Options, model: str, warm: int | None = None) -> Task:
    """What a process measures; each batch is seen once before the clock runs, where nothing else is said."""
    sizes = {"batch": args.batch, "batches": args.batches, "steps": args.steps}
    cap = CAP if args.smoke else None
    return Task(model, device(args), warm=args.batches if warm is None else warm, most_rows=cap, **sizes)


# -- figures ---------------------------------------------------------------------------------------------------


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    """The figures that have goals, of all parts that an answer has, and the time of the Medium model."""
    found = {name: answer["loads"]["0.75"][name] for name in ("find_gkv_s", "insert_gkv_s") if at_goal(answer)}
    found |= {"dynamic_vs_fixed": answer["steps_ms"]["dynamic_vs_fixed"]} if "steps_ms" in answer else {}
    for part, name in (("tiered", "tiered_warm"), ("uvm", "tiered_vs_uvm")):
        found |= {name: min(each[name] for each in answer[part].values())} if answer.get(part) else {}
    found |= {"medium_fp32": answer["medium"]["ms"]} if "medium" in answer else {}
    return found


def at_goal(answer: dict[str, Any]) -> bool:
    """Whether the load that has goals was measured."""
    return "0.75" in answer.get("loads", {})


def save(answer: dict[str, Any], folder: Path = RESULTS) -> Path:
    """results/DATE_tiers_gpu_NAME.json: parts that an earlier run of the day measured stay there; and the picture."""
    name = f"{answer['date']}_tiers_gpu_{short_name(answer)}"
    whole = with_before(answer, name, DIVIDED, folder)
    whole |= figures(whole)
    target = keep(whole, name, folder)
    picture(whole, "tiers_gpu_plot", "tiers_gpu")
    return target


def apart(answer: dict[str, Any], name: str, found: dict[str, Any] | None) -> dict[str, Any] | None:
    """The figures of a part; what its kernels took has a place of its own in the answer."""
    if found is not None and "profile" in found:
        profiles = answer.setdefault("profile", {})
        profiles |= {f"{name}, {call}": took for call, took in found.pop("profile").items()}
    return found


def lines(answer: dict[str, Any]) -> str:
    """The answer for people."""
    shown = [
        f"{name:18}{answer[name]:8.3f}   must be {s} {goal}" for name, (s, goal) in GOALS.items() if name in answer
    ]
    shown += [f"{'medium_fp32':18}{answer['medium_fp32']:8.1f}   ms"] if "medium_fp32" in answer else []
    for load, each in answer.get("loads", {}).items():
        shown.append(
            f"load {load}: find {each['find_gkv_s']:.2f}, slots alone {each['slots_gkv_s']:.2f}, insert "
            f"{each['insert_gkv_s']:.2f} G ids/s"
        )
    parts = [(name, part) for part in ("prepare_ms", "tiered", "uvm") for name in answer.get(part, {})]
    shown += [f"{name}, {part}: {numbers(answer[part][name])}" for name, part in parts]
    shown += [f"{part}: {numbers(answer[part])}" for part in ("steps_ms", "medium") if part in answer]
    for name, each in answer.get("profile", {}).items():
        host, launches, kernels = each["host_us"], each["launches"], each["kernels_us"]
        shown.append(f"{name}: host {host} µs for {launches} launches, kernels {kernels} µs: {each['kernels']}")
    return "\n".join([*shown, *(f"no {what}: {why}" for what, why in answer["absent"].items())])


def numbers(found: dict[str, Any]) -> str:
    """The single numbers of an object."""
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items() if isinstance(value, float | int))


def arguments() -> Options:
    parser = options_of(__doc__, saves=PARTLY)
    add_smoke(parser)
    add_parts(parser, tuple(PARTS))
    parser.add_argument("--rows", type=int, default=1 << 26, help="of the table of `keys`, when it is full")
    parser.add_argument("--keys", type=int, default=1 << 20, help="ids of a call")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--models", help=f"of batches, tiered and uvm: some of {','.join(TIERED)} (default: {MODELS})")
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--batches", type=int, default=64, help="distinct batches")
    parser.add_argument("--steps", type=int, default=40, help="timed calls: their median counts")
    parser.add_argument(
        "--profile", action="store_true", help="what kernels of `keys` and `batches` take, and the host"
    )
    args = parsed(parser, SMALL)
    if args.profile and args.smoke:
        parser.error("--profile asks a GPU what its kernels take: leave --smoke out")
    if unknown := sorted(set((args.models or "small").split(",")) - set(TIERED)):
        parser.error(f"unknown model {', '.join(unknown)}: choose from {', '.join(TIERED)}")
    return args


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save:
        note(f"saved as {save(answer)}")
    tell(answer, args, lines, [f"{what}: {why}" for what, why in answer["failed"].items()])


if __name__ == "__main__":
    main()
