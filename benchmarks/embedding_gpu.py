"""How fast are lookups, updates and whole training steps on one GPU, beside FBGEMM?

    python benchmarks/embedding_gpu.py tiny small criteo --json --save --passes 2
    python benchmarks/embedding_gpu.py medium --json --save --passes 2   # joins the file of the same day
    python benchmarks/embedding_gpu.py --smoke                           # does it run at all? on the CPU, ours alone

Batch 65,536, power-law ids, Adagrad by element on float32 rows (medium: float16 rows, row-wise Adagrad). `fwd` is the
lookup, `fwd_bwd` also backward and update of the rows with all sorting, `step` the whole of a training step with
the layers. Times are medians of 40 steps over 16 batches. README.md has the rest.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from embedding_gpu_figures import GOALS, Answers, figures, figures_of, lines
from gpu_models import SHAPES
from gpu_process import Task, run
from machine import gpu, machine

HERE = Path(__file__).parent
PROGRAMS = {"ours": "embedding_gpu_ours.py", "fbgemm": "peers/fbgemm_tbe_gpu.py"}
SLOWER = 1.5
SMOKE = Task("", "cpu", batch=64, batches=2, steps=3, warm=1, most_rows=500)
CHECK = Task("", batch=512, batches=4, most_rows=1_000)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole answer; a model without right answers of ours has no figures."""
    base = SMOKE if args.smoke else Task("", batch=args.batch, batches=args.batches, steps=args.steps)
    answer: dict[str, Any] = {"absent": {}, "correct": {}, **about(args, base)}
    if reason := why_no_peer(args):
        answer["absent"]["fbgemm"] = reason
        note(f"no FBGEMM: {reason}")
    answer["correct"] = check(args.models, base.device)
    for name in args.models:
        if answer["correct"][name]["passed"]:
            sides = ["ours"] if reason else list(PROGRAMS)
            answers = take_turns(replace(base, model=name), sides, args.passes)
            answer[name] = {**figures(name, answers), "passes": args.passes}
            answer["versions"] |= versions(answers)
    return answer


def check(models: list[str], device: str) -> dict[str, Any]:
    """Ours beside the CPU, by model."""
    found = run("embedding_gpu_check.py", replace(CHECK, model=",".join(models), device=device).to_json())
    missing = {"passed": False, "reason": found.get("crash", "it said nothing")}
    checked = {name: found.get(name, missing) for name in models}
    note(f"check: {checked}")
    return checked


def take_turns(task: Task, sides: list[str], passes: int) -> Answers:
    """Each side once per pass, every other pass backwards; kernels are looked at in the first."""
    answers: Answers = {side: [] for side in sides}
    for turn in range(passes):
        for side in sides if turn % 2 == 0 else reversed(sides):
            begin = time.perf_counter()
            asked = replace(task, profile=turn == 0, skip=hopeless(answers[side]))
            answer = run(PROGRAMS[side], asked.to_json())
            if "ms" in answer:
                answers[side].append(answer)
            note(f"{task.model}, pass {turn + 1}, {side}, {time.perf_counter() - begin:.0f} s: {said(answer)}")
    return answers


def hopeless(answers: list[dict[str, Any]]) -> tuple[str, ...]:
    """Variants that failed, or were slower than the fastest by half: a later pass leaves them out."""
    found = {what for answer in answers for what in answer["failures"]}
    for answer in answers:
        for part, each in answer["ms"].items():
            found |= {f"{part} {variant}" for variant, ms in each.items() if ms > SLOWER * min(each.values())}
    return tuple(sorted(found))


def said(answer: dict[str, Any]) -> str:
    """The times of an answer, and what failed, in a line."""
    times = [f"{part} {v} {ms:.3f}" for part, each in answer.get("ms", {}).items() for v, ms in each.items()]
    failed = [f"{what} FAILED ({why})" for what, why in answer.get("failures", {}).items()]
    return "; ".join([*times, *failed, *([f"CRASH {answer['crash']}"] if "crash" in answer else [])])


def why_no_peer(args: argparse.Namespace) -> str | None:
    if args.smoke or args.no_peer:
        return "it was not asked for"
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return "fbgemm_gpu cannot be imported; see benchmarks/README.md for what it needs"
    return None


def versions(answers: Answers) -> dict[str, str]:
    """What the peer said of itself."""
    return {name: said for each in answers.values() for a in each for name, said in a.get("versions", {}).items()}


def about(args: argparse.Namespace, task: Task) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    triton = importlib.util.find_spec("triton")
    installed = {"triton": __import__("triton").__version__} if triton else {}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {**machine(), "gpu": gpu()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **installed},
        "batch": task.batch,
        "steps": task.steps,
        "batches_wanted": task.batches,
        "passes": args.passes,
    }


def save(answer: dict[str, Any], folder: Path = HERE / "results") -> Path:
    """results/DATE_gpu_NAME.json: models that an earlier run of the day measured stay there; and the picture."""
    name = answer["machine"]["gpu"]["name"].split()[-1].lower()
    target = folder / f"{answer['date']}_gpu_{name}.json"
    before = json.loads(target.read_text()) if target.exists() else {}
    kept = {model: before[model] for model in GOALS if model in before}
    for key in ("correct", "versions"):
        answer[key] = {**before.get(key, {}), **answer[key]}
    target.write_text(json.dumps({**kept, **answer}, indent=1) + "\n")
    try:
        from embedding_gpu_plot import draw
    except ModuleNotFoundError as missing:
        note(f"no picture: {missing}")
    else:
        draw({**kept, **answer}, HERE.parent / "docs" / "images" / "embedding_gpu.svg")
    return target


def wrong(answer: dict[str, Any]) -> list[str]:
    """What ours should have answered and did not: unlike an absent peer, a failure."""
    found = [f"{name}: no right answers: {each}" for name, each in answer["correct"].items() if not each.get("passed")]
    for name, part in ((name, part) for name in SHAPES for part in ("fwd", "fwd_bwd", "step")):
        if name in answer and part not in answer[name]["ms"].get("ours", {}):
            found.append(f"{name}: ours has no {part}: {answer[name]['failures']}")
    return found


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ["tiny", "small", "criteo"]
    parser.add_argument(
        "models", nargs="*", help=f"some of {', '.join(SHAPES)}; {', '.join(usual)} where none is named"
    )
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object, last line")
    parser.add_argument("--save", action="store_true", help="keep the answer in results/ and its picture in docs/")
    parser.add_argument(
        "--smoke", action="store_true", help="small tables on the CPU, ours alone: figures mean nothing"
    )
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--batches", type=int, default=16, help="distinct batches; medium: as many as memory allows")
    parser.add_argument("--steps", type=int, default=40, help="timed steps: their median counts")
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    args = parser.parse_args()
    if unknown := [name for name in args.models if name not in SHAPES]:
        parser.error(f"unknown model {', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    if not args.smoke and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no GPU; --smoke runs on the CPU")
    if args.smoke and args.save:
        parser.error("a smoke run has no figures to save; leave --save or --smoke out")
    args.models = args.models or (list(SHAPES) if args.smoke else usual)
    return args


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save and any(figures_of(answer.get(name, {})) or name in answer for name in SHAPES):
        note(f"saved as {save(answer)}")
    print(json.dumps(answer) if args.json else lines(answer))
    if problems := wrong(answer):
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
