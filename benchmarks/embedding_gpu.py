"""How fast are lookups, updates and whole training steps on one GPU, beside FBGEMM?

    python benchmarks/embedding_gpu.py tiny small criteo --json --save --passes 2
    python benchmarks/embedding_gpu.py medium --json --save --passes 2   # joins the file of the same day
    python benchmarks/embedding_gpu.py --smoke                           # does it run at all? on the CPU, ours alone

Batch 65,536, power-law ids, Adagrad by element on float32 rows (medium: float16 rows, row-wise Adagrad). `fwd` is the
lookup, `fwd_bwd` also backward and update of the rows with all sorting, `step` the whole of a training step with
the layers. Times are medians of 40 steps over 16 batches. README.md has the rest.
"""

from __future__ import annotations

import importlib.util
import time
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedding_gpu_figures import GOALS, Answers, figures, figures_of, lines
from embedding_gpu_known import known_from
from gpu_models import SHAPES
from gpu_process import Task, run
from machine import gpu, short_name
from question import (
    RESULTS,
    Options,
    Parser,
    about,
    add_smoke,
    keep,
    kept_before,
    note,
    options_of,
    parsed,
    picture,
    tell,
)

PROGRAMS = {"ours": "embedding_gpu_ours.py", "fbgemm": "peers/fbgemm_tbe_gpu.py"}
USUAL = ["tiny", "small", "criteo"]
SLOWER = 1.5
SMOKE = Task("", "cpu", batch=64, batches=2, steps=3, warm=1, most_rows=500)
CHECK = Task("", batch=512, batches=4, most_rows=1_000)


def measure(args: Options) -> dict[str, Any]:
    """The whole answer; a model without right answers of ours has no figures."""
    base = SMOKE if args.smoke else Task("", batch=args.batch, batches=args.batches, steps=args.steps)
    modules = [name for name in ("torch", "triton") if importlib.util.find_spec(name)]
    sizes = {"batch": base.batch, "steps": base.steps, "batches_wanted": base.batches}
    answer: dict[str, Any] = {"absent": {}, "correct": {}, **about(args, ["passes"], modules, gpu=gpu()), **sizes}
    if reason := why_no_peer(args):
        answer["absent"]["fbgemm"] = reason
        note(f"no FBGEMM: {reason}")
    answer["correct"] = check(args.models, base.device)
    for name in args.models:
        if answer["correct"][name]["passed"]:
            sides = ["ours"] if reason else list(PROGRAMS)
            left_out = args.known.left_out(name, sides) if args.known else {}
            answers = take_turns(replace(base, model=name), sides, args.passes, left_out)
            answer[name] = {**figures(name, answers), "passes": args.passes}
            answer[name] |= {"known": args.known.path.name, "left_out": left_out} if args.known else {}
            answer["versions"] |= versions(answers)
    return answer


def check(models: list[str], device: str) -> dict[str, Any]:
    """Ours beside the CPU, by model."""
    found = run("embedding_gpu_check.py", replace(CHECK, model=",".join(models), device=device).to_json())
    missing = {"passed": False, "reason": found.get("crash", "it said nothing")}
    checked = {name: found.get(name, missing) for name in models}
    note(f"check: {checked}")
    return checked


def take_turns(task: Task, sides: list[str], passes: int, left_out: dict[str, list[str]]) -> Answers:
    """Each side once per pass, every other pass backwards; kernels are looked at in the first.

    What is `left_out` of a side is tried in no pass, what has proved hopeless in no later one.
    """
    answers: Answers = {side: [] for side in sides}
    for turn in range(passes):
        for side in sides if turn % 2 == 0 else reversed(sides):
            begin = time.perf_counter()
            skip = (*left_out.get(side, []), *hopeless(answers[side]))
            asked = replace(task, profile=turn == 0, skip=skip)
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


def why_no_peer(args: Options) -> str | None:
    if args.smoke or args.no_peer:
        return "it was not asked for"
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return "fbgemm_gpu cannot be imported; see benchmarks/README.md for what it needs"
    return None


def versions(answers: Answers) -> dict[str, str]:
    """What the peer said of itself."""
    return {name: said for each in answers.values() for a in each for name, said in a.get("versions", {}).items()}


def save(answer: dict[str, Any], folder: Path = RESULTS) -> Path:
    """results/DATE_gpu_NAME.json: models that an earlier run of the day measured stay there; and the picture."""
    name = f"{answer['date']}_gpu_{short_name(answer)}"
    before = kept_before(name, folder)
    models = {model: before[model] for model in GOALS if model in before}
    joined = {key: {**before.get(key, {}), **answer[key]} for key in ("correct", "versions")}
    whole = {**models, **answer, **joined}
    target = keep(whole, name, folder)
    picture(whole, "embedding_gpu_plot", "embedding_gpu")
    return target


def wrong(answer: dict[str, Any]) -> list[str]:
    """What ours should have answered and did not: unlike an absent peer, a failure."""
    found = [f"{name}: no right answers: {each}" for name, each in answer["correct"].items() if not each.get("passed")]
    for name, part in ((name, part) for name in SHAPES for part in ("fwd", "fwd_bwd", "step")):
        if name in answer and part not in answer[name]["ms"].get("ours", {}):
            found.append(f"{name}: ours has no {part}: {answer[name]['failures']}")
    return found


def model_name(text: str) -> str:
    if text not in SHAPES:
        raise ArgumentTypeError(f"unknown model {text}: choose from {', '.join(SHAPES)}")
    return text


def arguments() -> Options:
    parser = options_of(__doc__)
    told = f"some of {', '.join(SHAPES)}; {', '.join(USUAL)} where none is named"
    parser.add_argument("models", nargs="*", type=model_name, help=told)
    add_smoke(parser)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--batches", type=int, default=16, help="distinct batches; medium: as many as memory allows")
    parser.add_argument("--steps", type=int, default=40, help="timed steps: their median counts")
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    told = "an earlier answer, of results/: variants that failed or were slower there are left out"
    parser.add_argument("--known", type=known_from, metavar="FILE", help=told)
    args = parsed(parser)
    args.models = args.models or (list(SHAPES) if args.smoke else USUAL)
    if args.known:
        check_known(parser, args)
    return args


def check_known(parser: Parser, args: Options) -> None:
    """An earlier answer helps where it has a model that is asked for, on a GPU."""
    path, models = args.known.path, args.known.models
    if args.smoke:
        parser.error(f"--known {path} says nothing of a smoke run on the CPU; leave --known or --smoke out")
    if not models.keys() & set(args.models):
        parser.error(f"--known {path} has none of {', '.join(args.models)}; it has {', '.join(models) or 'no model'}")


def main() -> None:
    args = arguments()
    answer = measure(args)
    if args.save and any(figures_of(answer.get(name, {})) or name in answer for name in SHAPES):
        note(f"saved as {save(answer)}")
    tell(answer, args, lines, wrong(answer))


if __name__ == "__main__":
    main()
