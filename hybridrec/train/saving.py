"""Checkpoints of a fit: what goes in beside weights, when they are due, and how a fit goes on from one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hybridrec.parallel.ranks import Ranks
from hybridrec.remedy import remedied
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, LoadReport, load, read_manifest
from hybridrec.train.checkpoint.load import Misfit, differences
from hybridrec.train.checkpoint.set_aside import set_aside
from hybridrec.train.run_directory import RunDirectory
from hybridrec.train.seeds import rng_line, rng_state, seed_everything, set_rng_line, set_rng_state
from hybridrec.train.together import inside, path_on_main

if TYPE_CHECKING:
    from hybridrec.train.fit import Fit
    from hybridrec.train.trainer import Trainer

VERSION = 1


class Saver:
    """Saves a fit into the folder of its run, and takes it up again; without a folder it does nothing."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        run, options = fit.trainer.run, fit.trainer.options
        self.checkpoints = None if run is None else Checkpoints(run.checkpoints, keep=options.keep)
        self._last_step, self._last_time = -1, time.monotonic()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.checkpoints is not None:
            self.checkpoints.__exit__(*error)

    def due(self) -> bool:
        """Whether the number of steps says that it is time."""
        every = self._fit.trainer.options.save_every
        return every is not None and self._fit.state.step % every == 0

    def overdue(self) -> bool:
        """Whether the clock says so, which of many ranks is that of rank 0."""
        minutes = self._fit.trainer.options.save_minutes
        return self._fit.trainer.is_main and time.monotonic() - self._last_time >= 60 * minutes

    def save(self, metrics: Mapping[str, float] | None = None, *, best: bool = False, wait: bool = False) -> None:
        """Save everything; refuses layers that are not finite, so that the checkpoints before stay the newest."""
        if self.checkpoints is None:
            return
        step = self._fit.state.step
        check_finite(inside(self._fit.trainer.model), step)
        numbers = _numbers(metrics or {})
        self.checkpoints.save(self._contents(self._state()), step, metrics=numbers, best=best, wait=wait)
        self._last_step, self._last_time = step, time.monotonic()

    def steps_since(self, saved: Path | None) -> int:
        """Steps that were made since a checkpoint."""
        return self._fit.state.step - (0 if saved is None else read_manifest(saved).step)

    def latest(self) -> Path | None:
        """The newest complete checkpoint of the run."""
        return None if self.checkpoints is None else self.checkpoints.latest()

    def settled(self) -> Path | None:
        """The newest complete checkpoint once the one that is being written is done; its errors are told at the end."""
        while self.checkpoints is not None and self.checkpoints.busy:
            time.sleep(0.01)
        return self.latest()

    def resume(self, path: Path) -> None:
        """Go on where a checkpoint was saved."""
        contents = self._contents({})
        try:
            load(path, contents)
        except Misfit as error:
            raise self._refused(path, error.report) from error
        self._load_state(contents.state)

    def _refused(self, path: Path, report: LoadReport) -> ValueError:
        """What differs, first as the options of the model that were given, then a few of the weights."""
        run = self._fit.trainer.run
        changed = [] if run is None else changes(run, self._fit.trainer.config())
        title = f"{path} is of another model" + (f": {', '.join(changed)}" if changed else "")
        what = "\n".join([title, *differences(report, 3)])
        return remedied(
            CheckpointError,
            f"{what}\nNothing was loaded, and nothing has changed",
            call="make the model as it was, or give another folder as out=",
            setting=f"leave the model as it was ({resume_command(self._fit.trainer)}), or give another folder as --out",
        )

    def set_others_aside(self, resumed: Path) -> Path | None:
        """Move checkpoints that are newer than the one resumed from; one of another folder is saved here at once."""
        if self.checkpoints is None:
            return None
        assert self._fit.trainer.run is not None, "checkpoints lie in the folder of a run"
        directory, metrics, ranks = self.checkpoints.directory, self._fit.trainer.run.metrics, self._fit.ranks
        moved = path_on_main(ranks, lambda: set_aside(directory, resumed, metrics))
        if path_on_main(ranks, self.latest) is None:
            self.save(wait=True)
        return moved

    def load_best(self) -> bool:
        """The weights of the best checkpoint into the model; whether there is one."""
        checkpoints = self.checkpoints
        best = None if checkpoints is None else path_on_main(self._fit.ranks, checkpoints.best)
        if best is not None:
            load(best, Contents(inside(self._fit.trainer.model)))
        return best is not None

    # -- what goes in ---------------------------------------------------------------------------------------

    def _contents(self, state: dict[str, Any]) -> Contents:
        learner = self._fit.trainer.learner
        named = {"dense": learner.dense, "rows": learner.rows}
        optimizers = {name: each for name, each in named.items() if each is not None}
        return Contents(inside(learner.model), optimizers, state)

    def _state(self) -> dict[str, Any]:
        fit = self._fit
        return {
            "version": VERSION,
            "run": fit.state.to_json(),
            "data": fit.data.state(),
            "window": fit.window.state_dict(),
            "schedulers": {name: _plain(each.state_dict()) for name, each in fit.schedulers.items()},
            "watches": {name: watch.state_dict() for name, watch in fit.validation.watches.items()},
            "found": _numbers(fit.validation.found),
            "callbacks": fit.trainer.callbacks.state_dict(),
            "rng": rng_state(),
            "rng_of_ranks": None if fit.ranks is None else fit.ranks.stacked(rng_line()),
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        fit = self._fit
        if state.get("version") != VERSION:
            raise ValueError(
                f"the checkpoint was not saved by a Trainer of this version (state version {state.get('version')!r}, "
                f"wanted {VERSION}); load its weights with hybridrec.load, and fit without resume="
            )
        fit.state.load(state["run"])
        if state["data"] is not None and fit.state.epoch_steps:
            fit.data.load(state["data"])
        fit.window.load_state_dict(state["window"])
        for name, each in fit.schedulers.items():
            if name in state["schedulers"]:
                each.load_state_dict({**each.state_dict(), **state["schedulers"][name]})
        for name, watch in fit.validation.watches.items():
            if name in state["watches"]:
                watch.load_state_dict(state["watches"][name])
        if fit.validation.data is not None:
            fit.validation.found = state.get("found", {})
        fit.trainer.callbacks.load_state_dict(state["callbacks"])
        set_rng_state(state["rng"])
        if fit.ranks is not None:
            self._own_rng(fit.ranks, state.get("rng_of_ranks"))

    def _own_rng(self, ranks: Ranks, saved: torch.Tensor | None) -> None:
        """Each rank draws on for itself, as it did. In another world, rank 0 draws on and the others begin anew."""
        same = saved is not None and len(saved) == ranks.world and set_rng_line(saved[ranks.rank])
        if not same and ranks.rank:
            seed_everything(torch.initial_seed() + ranks.rank)


def changes(run: RunDirectory, config: Mapping[str, Any]) -> list[str]:
    """In which options the model of a run is another now, as far as its folder tells."""
    try:
        before = run.read("config.json")["model"]
    except (OSError, ValueError, KeyError):
        return []
    now = config["model"]
    if before["name"] != now["name"]:
        return [f"model.name was {before['name']} and is {now['name']}"]
    was, made = before["config"], now["config"]
    return [
        f"model.{name} was {was[name]} and is {made[name]}" for name in made if was.get(name, made[name]) != made[name]
    ]


def resume_command(trainer: Trainer) -> str:
    """What goes on with a run that a command has started."""
    assert trainer.run is not None, "a fit without a folder has nothing to resume"
    return trainer.about.get("resume_with") or f"hybridrec train --out {trainer.run.path} --resume"


def check_finite(model: torch.nn.Module, step: int) -> None:
    """Raise where a parameter holds a number that is not finite."""
    for name, part in model.named_parameters():
        if not bool(part.detach().isfinite().all()):
            raise FloatingPointError(
                f"parameter {name!r} holds values that are not finite after step {step}, so nothing is saved; lower "
                "the learning rate, or clip gradients (clip_norm=1.0)"
            )


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Those among the figures of a validation: a callback may have added others."""
    return {name: value for name, value in found.items() if isinstance(value, float)}


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "lr_lambdas"}
