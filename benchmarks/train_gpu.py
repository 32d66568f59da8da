"""How fast does the Trainer train DLRM from Parquet files on a GPU, and does the GPU ever wait for data?

    python benchmarks/train_gpu.py --json --save                  # DLRM on Criteo-shaped files
    python benchmarks/train_gpu.py --json --save --criteo1tb      # DLRM and DCNv2 on the tables of Criteo 1 TB
    python benchmarks/train_gpu.py --smoke                        # does it run at all? on the CPU

The files have 26 id columns with power-law ids into tables of a million rows, 13 numbers and a label. `gpu_busy` is
the share of time in which the GPU runs kernels; the lower one of TF32 and bfloat16 counts. README.md has the rest.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_models import CRITEO_1TB
from gpu_process import run
from machine import gpu, short_name
from question import CACHE, RESULTS, Options, about, add_smoke, keep, note, options_of, parsed, tell, with_before
from train_gpu_run import Task
from train_workload import write_files
from workloads import IDS

PRECISIONS = ("tf32", "bf16")
SMOKE = {"rows": 4_096, "files": 2, "ids": 200, "batch": 256, "warm": 2, "steps": 4, "passes": 1}
KEPT = ("rows", "files", "ids", "batch", "steps", "passes", "compile")
GOALS = {"gpu_busy": 0.9}
# Samples/s of NVIDIA's DLRM_and_DCNv2 (TensorFlow with distributed-embeddings), one A100 80GB, batch 65,536; its AMP
# is beside our bfloat16. Its model on one GPU has 15.6 GiB of rows.
PUBLISHED = {"dlrm": {"tf32": 2_840_000, "bf16": 4_550_000}, "dcnv2": {"tf32": 689_000, "bf16": 1_370_000}}


def measure(args: Options) -> dict[str, Any]:
    """The whole answer."""
    answer: dict[str, Any] = {"failed": {}, **about(args, KEPT, ["torch"], gpu=gpu())}
    if args.criteo1tb:
        return {**answer, "criteo1tb": {model: criteo1tb(args, model, answer) for model in args.models.split(",")}}
    begin = time.perf_counter()
    files = tuple(map(str, write_files(args.rows, args.ids, args.data, args.files)))
    note(f"{args.rows:,} rows in {len(files)} files, {time.perf_counter() - begin:.0f} s")
    base = replace(task_of(args, "dlrm"), files=files)
    parts = best_passes(args, base, answer)
    shares = [part["gpu_busy"] for part in parts.values() if "gpu_busy" in part]
    found = {"gpu_busy": min(shares)} if shares else {}
    met = {key: found[key] >= goal for key, goal in GOALS.items() if key in found}
    rates = {precision: part["samples_per_s"] for precision, part in parts.items()}
    return {**found, "goals": GOALS, "met": met, "samples_per_s": rates, **answer, "parts": parts}


def criteo1tb(args: Options, model: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The step alone, beside the published figures."""
    rows = tuple(min(rows, args.ids) for rows in CRITEO_1TB) if args.smoke else CRITEO_1TB
    parts = best_passes(args, replace(task_of(args, model), rows=rows), answer)
    beside = {precision: part["samples_per_s"] / PUBLISHED[model][precision] for precision, part in parts.items()}
    return {**parts, "published_a100": PUBLISHED[model], "vs_published_a100": beside}


def best_passes(args: Options, base: Task, answer: dict[str, Any]) -> dict[str, Any]:
    """Per precision the pass with most samples/s, and those of all passes; precisions take turns."""
    passes: dict[str, list[dict[str, Any]]] = {precision: [] for precision in PRECISIONS}
    for turn in range(args.passes):
        for precision in PRECISIONS if turn % 2 == 0 else reversed(PRECISIONS):
            found = run("train_gpu_run.py", replace(base, precision=precision).to_json())
            note(f"{base.model}, {precision}, pass {turn + 1}: {said(found)}")
            if "crash" in found:
                answer["failed"][f"{base.model} {precision}"] = found["crash"]
            else:
                passes[precision].append(found)
    return {
        precision: {
            **max(found, key=lambda each: each["samples_per_s"]),
            "passes": [round(each["samples_per_s"]) for each in found],
        }
        for precision, found in passes.items()
        if found
    }


def task_of(args: Options, model: str) -> Task:
    sizes = {"batch": args.batch, "warm": args.warm, "steps": args.steps, "compile": args.compile}
    device, dim = ("cpu", 8) if args.smoke else ("cuda", 128)
    return Task(model, "", (args.ids,) * IDS, device=device, dim=dim, **sizes)


def said(answer: dict[str, Any]) -> str:
    """The single numbers of an answer."""
    if "crash" in answer:
        return f"CRASH {answer['crash']}"
    return ", ".join(f"{name} {value:,.4g}" for name, value in answer.items() if isinstance(value, float))


def save(answer: dict[str, Any], folder: Path = RESULTS) -> Path:
    """results/DATE_train_gpu_NAME.json; what an earlier run of the day measured stays there."""
    name = f"{answer['date']}_train_gpu_{short_name(answer)}"
    return keep(with_before(answer, name, ["criteo1tb"], folder), name, folder)


def lines(answer: dict[str, Any]) -> str:
    """The figures for people."""
    shown = [f"{key:24}{answer[key]:12.3f}   must be >= {goal}" for key, goal in GOALS.items() if key in answer]
    shown += [f"{'dlrm, ' + p:24}{rate:12,.0f}   samples/s" for p, rate in answer.get("samples_per_s", {}).items()]
    for model, found in answer.get("criteo1tb", {}).items():
        for precision, ratio in found["vs_published_a100"].items():
            rate = found[precision]["samples_per_s"]
            shown.append(f"{model + ', ' + precision:24}{rate:12,.0f}   samples/s, {ratio:.2f} of one A100 (published)")
    return "\n".join(shown)


def arguments() -> Options:
    parser = options_of(__doc__, saves="keep the answer in results/")
    add_smoke(parser)
    parser.add_argument("--criteo1tb", action="store_true", help="steps of DLRM and DCNv2 on the tables of Criteo 1 TB")
    parser.add_argument("--models", default=",".join(PUBLISHED), help="which of these")
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of all files")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--ids", type=int, default=1_000_000, help="ids of each feature, and rows of its table")
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--warm", type=int, default=20, help="steps before the clock runs")
    parser.add_argument("--steps", type=int, default=60, help="steps of a stretch")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--data", type=Path, default=CACHE)
    args = parsed(parser, SMOKE)
    if unknown := sorted(set(args.models.split(",")) - set(PUBLISHED)):
        parser.error(f"unknown model {', '.join(unknown)}: choose from {', '.join(PUBLISHED)}")
    return args


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save and not answer["failed"]:
        note(f"saved as {save(answer)}")
    tell(answer, args, lines, [f"{what}: {why}" for what, why in answer["failed"].items()])


if __name__ == "__main__":
    main()
