"""How fast does one GPU find the ids of dynamic tables, take in new ones, give up rows for them, and train on them?

    python benchmarks/tiers_gpu.py --json --save
    python benchmarks/tiers_gpu.py --smoke          # does it run at all? on the CPU, through Triton's interpreter

`keys`: one table, calls of 1,048,576 distinct ids, rows of 64 float32. `find_gkv_s` is finding them and copying their
rows, `insert_gkv_s` taking in as many new ones, with all that a training lookup decides, and writing their rows: G ids
a second, at several loads of the index. `batches`: what a training lookup of all ids of a model's batch takes before
rows are read, ms. `steps`: `dynamic_vs_fixed` is the time of whole training steps of the Small model with dynamic
tables that have seen all their ids over that with fixed ones. `tiered`: `tiered_warm` is the speed of whole training
steps, as CUDA graphs, with a fifth of the rows of fixed tables of a million and more on the card, over that with all
rows there: the least of the models. Times are medians by the device's clock, of calls that wait for it and not for the
host. Figures come only after the answers were found right. `--profile` adds what each kernel and the host take.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from gpu_models import SHAPES
from machine import gpu, short_name
from question import Options, about, add_parts, add_smoke, keep, note, options_of, parsed, tell

GOALS = {"find_gkv_s": 3.0, "insert_gkv_s": 1.5, "dynamic_vs_fixed": 1.8, "tiered_warm": 0.6}  # the third at most
SMALL = {"rows": 200, "keys": 32, "batch": 2, "batches": 2, "steps": 1, "models": "criteo"}


def measure(args: Options) -> dict[str, Any]:
    """The whole answer."""
    if args.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined, so they are imported here
    import tiers_gpu_keys as work

    modules = [name for name in ("torch", "triton") if importlib.util.find_spec(name)]
    kept = ["rows", "keys", "dim", "batch", "batches", "steps"]
    answer: dict[str, Any] = {**about(args, kept, modules, gpu=gpu()), "goals": GOALS}
    device = "cpu" if args.smoke else "cuda"
    if "keys" in args.only:
        answer["loads"] = {}
        for load in (0.5, 0.75, 0.95):
            answer["loads"][str(load)] = apart(answer, f"load {load}", work.keys(args, load, device))
            note(f"load {load}: {answer['loads'][str(load)]}")
        answer |= {name: answer["loads"]["0.75"][name] for name in ("find_gkv_s", "insert_gkv_s")}
    if "batches" in args.only:
        answer["prepare_ms"] = {}
        for name in args.models.split(","):
            answer["prepare_ms"][name] = apart(answer, name, work.batches(args, name, device))
            note(f"{name}: {answer['prepare_ms'][name]}")
    if "steps" in args.only:
        import tiers_gpu_steps

        answer["steps"] = tiers_gpu_steps.steps(args, device)
        answer["dynamic_vs_fixed"] = answer["steps"]["dynamic_vs_fixed"]
    if "tiered" in args.only:
        import tiers_gpu_tiered

        answer["tiered"] = {}
        for name in args.models.split(","):
            answer["tiered"][name] = tiers_gpu_tiered.tiered(args, name, device)
            note(f"{name}: {answer['tiered'][name]}")
        answer["tiered_warm"] = min(each["tiered_warm"] for each in answer["tiered"].values())
    return answer


def apart(answer: dict[str, Any], name: str, found: dict[str, Any]) -> dict[str, float]:
    """The figures of a part; what its kernels took has a place of its own in the answer."""
    if "profile" in found:
        profiles = answer.setdefault("profile", {})
        profiles |= {f"{name}, {call}": took for call, took in found.pop("profile").items()}
    return found


def lines(answer: dict[str, Any]) -> str:
    """The answer for people."""
    told = [
        f"load {load}: find {each['find_gkv_s']:.2f}, slots alone {each['slots_gkv_s']:.2f}, insert "
        f"{each['insert_gkv_s']:.2f} G ids/s"
        for load, each in answer.get("loads", {}).items()
    ]
    for name, each in answer.get("prepare_ms", {}).items():
        told.append(f"{name}: " + ", ".join(f"{part} {ms:.3f} ms" for part, ms in each.items()))
    if "dynamic_vs_fixed" in answer:
        told.append("a step: " + ", ".join(f"{name} {number:.3f}" for name, number in answer["steps"].items()))
    for name, each in answer.get("tiered", {}).items():
        told.append(f"{name}, tiered: " + ", ".join(f"{part} {number:.3f}" for part, number in each.items()))
    for name, each in answer.get("profile", {}).items():
        host, launches, kernels = each["host_us"], each["launches"], each["kernels_us"]
        told.append(f"{name}: host {host} µs for {launches} launches, kernels {kernels} µs: {each['kernels']}")
    return "\n".join(told)


def arguments() -> Options:
    parser = options_of(__doc__, saves="keep the answer in results/")
    add_smoke(parser)
    add_parts(parser, ("keys", "batches", "steps", "tiered"))
    parser.add_argument("--rows", type=int, default=1 << 26, help="of the table of `keys`, when it is full")
    parser.add_argument("--keys", type=int, default=1 << 20, help="ids of a call")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--models", default="small,criteo", help=f"some of {','.join(SHAPES)}")
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--batches", type=int, default=64, help="distinct batches")
    parser.add_argument("--steps", type=int, default=40, help="timed calls: their median counts")
    parser.add_argument(
        "--profile", action="store_true", help="what kernels of `keys` and `batches` take, and the host"
    )
    args = parsed(parser, SMALL)
    if args.profile and args.smoke:
        parser.error("--profile asks a GPU what its kernels take: leave --smoke out")
    if unknown := sorted(set(args.models.split(",")) - set(SHAPES)):
        parser.error(f"unknown model {', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    return args


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save:
        name = f"{answer['date']}_tiers_gpu_{short_name(answer)}"
        note(f"saved as {keep(answer, name)}")
    tell(answer, args, lines)


if __name__ == "__main__":
    main()
