"""Loads a checkpoint by name: everything is checked before anything changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.owner import groups_of
from hybridrec.optim import RowOptimizer
from hybridrec.parallel.ranks import Ranks, names_of, ranks
from hybridrec.train.checkpoint import tree
from hybridrec.train.checkpoint.contents import Contents
from hybridrec.train.checkpoint.dense_optimizer import DenseLoad
from hybridrec.train.checkpoint.homes import distributed, homes_of, unwrapped
from hybridrec.train.checkpoint.load_report import LoadReport
from hybridrec.train.checkpoint.manifest import Manifest, read_manifest
from hybridrec.train.checkpoint.names import Renamer, renamed, renamer
from hybridrec.train.checkpoint.row_optimizer import RowLoad
from hybridrec.train.checkpoint.table_info import Home
from hybridrec.train.checkpoint.table_load import TableLoad, files_of_others
from hybridrec.train.checkpoint.verify import problems_of_files
from hybridrec.train.checkpoint.weight_load import WeightLoad
from hybridrec.train.checkpoint.write import TENSORS, TREES
from hybridrec.train.manifest_body import CheckpointError

Made = TypeVar("Made")


class Misfit(CheckpointError):
    """A checkpoint is sound, but not of such a model; `report` has what differs."""

    def __init__(self, message: str, report: LoadReport) -> None:
        super().__init__(message)
        self.report = report


def load(
    path: Path | str, contents: Contents, *, strict: bool = True, rename: Mapping[str, str] | None = None
) -> LoadReport:
    """Fill the model and the optimizers of `contents` in place, and set its `state`; returns what was done.

    The checksums of all files are compared first. With `strict`, whatever is missing, left over or does not fit is an
    error, and nothing has changed then; else it is skipped and reported. `rename` maps saved names, or their beginnings
    up to a dot, to those of the model. Without optimizers in `contents`, those of the checkpoint are passed over.

    A model that `hr.shard` made is loaded by all ranks together, from the checkpoint that rank 0 names, by however many
    ranks and with whatever plan it was saved: each reads the rows and columns that it holds.

    >>> import tempfile
    >>> from hybridrec.train.checkpoint import Checkpoints
    >>> with Checkpoints(tempfile.mkdtemp()) as checkpoints:
    ...     checkpoints.save(Contents(torch.nn.Linear(2, 1), state={"epoch": 3}), step=10)
    >>> contents = Contents(torch.nn.Linear(2, 1))
    >>> load(checkpoints.latest(), contents)
    2 loaded: weight weight, weight bias
    >>> contents.state
    {'epoch': 3}
    """
    for _, group in groups_of(unwrapped(contents.model)):
        getattr(group, "settle", lambda: None)()  # pushes that are on their way must not come after the rows
    team = ranks() if distributed(contents.model) else None
    if team is None:
        return _Loading(Path(path), contents, rename, strict).run()
    folder = Path(team.told(str(path)))
    loading = _agreed(team, lambda: _Loading(folder, contents, rename, strict), "nothing was loaded")
    return _agreed(team, loading.run, "the model is loaded in part, and must be loaded again before it is used")


def _agreed(team: Ranks, work: Callable[[], Made], otherwise: str) -> Made:
    """What this rank makes; where that fails on any, all of them raise and say how things stand."""
    found: list[Made] = []
    error = None
    try:
        found = [work()]
    except Exception as caught:
        error = caught
    every = team.all_told(None if error is None else str(error))
    if error is not None:
        raise error
    if failed := [rank for rank, text in enumerate(every) if text is not None]:
        raise CheckpointError(f"{otherwise}, since {names_of(failed)} could not: {every[failed[0]]}")
    return found[0]


class _Loading:
    """A checkpoint and what it is loaded into, compared; Misfit where that does not fit, and `strict`."""

    def __init__(self, folder: Path, contents: Contents, rename: Mapping[str, str] | None, strict: bool) -> None:
        self.folder, self.contents = folder, contents
        self.model = unwrapped(contents.model)
        self.homes = homes_of(self.model)
        self.manifest = read_manifest(folder)
        with ThreadPoolExecutor(1) as meanwhile:  # the disk is the slower one
            meanwhile.submit(_make_room, self.homes, self.manifest)
            tables = {renamed(name, rename or {}): info for name, info in self.manifest.tables.items()}
            _check_files(folder, self.manifest, files_of_others(self.homes, tables))
        self.trees = json.loads((folder / TREES).read_text(encoding="utf-8"))
        dense, state = self._tensors("dense"), self._tensors("state")
        extra = tree.decode(self.trees["model"], state)
        new = renamer(rename, [*self.manifest.tables, *dense, *extra])
        self.weights = WeightLoad(self.model, {new(name): part for name, part in {**dense, **extra}.items()})
        self.tables = TableLoad(self.homes, tables, {new(name): name for name in self.manifest.tables})
        self.state = tree.decode(self.trees["state"], state)
        self.optimizers, self.report = self._compared(new)
        if strict and not self.report.complete:
            raise Misfit(_refusal(self.folder, self.report), self.report)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / TENSORS[name])

    def _compared(self, new: Renamer) -> tuple[dict[str, DenseLoad | RowLoad], LoadReport]:
        """The optimizers that can be loaded, and all that does not fit."""
        report = LoadReport()
        self.weights.add_to(report)
        self.tables.add_to(report)
        found: dict[str, DenseLoad | RowLoad] = {}
        if not self.contents.optimizers:
            return found, report
        saved = tree.decode(self.trees["optimizers"], self._tensors("optimizer"))
        wanted = self.contents.optimizers
        report.missing += [f"optimizer {name}" for name in wanted if name not in saved]
        report.skipped |= {f"optimizer {name}": "none of this name is given" for name in saved if name not in wanted}
        for name in [name for name in wanted if name in saved]:
            each = self._optimizer(wanted[name], saved[name], new)
            if each.misfit:
                report.skipped[f"optimizer {name}"] = each.misfit
            else:
                found[name] = each
            report.skipped |= {f"optimizer {name}, {part}": why for part, why in each.losses.items()}
        return found, report

    def _optimizer(self, optimizer: torch.optim.Optimizer, saved: Any, new: Renamer) -> DenseLoad | RowLoad:
        if isinstance(optimizer, RowOptimizer):
            return RowLoad(optimizer, self.homes, saved, new)
        return DenseLoad(optimizer, self.model, saved, self.weights.shapes, new)

    def run(self) -> LoadReport:
        """Load what fits."""
        self.weights.apply(self.folder)
        for name in self.tables.fitting:
            for note in self.tables.apply(name, self.folder):
                self.report.add_note(f"table {name}", note)
        for each in self.optimizers.values():
            each.apply()
        self.contents.state = self.state
        names = ("weight", self.weights.fitting), ("table", self.tables.fitting), ("optimizer", self.optimizers)
        self.report.loaded = [f"{kind} {name}" for kind, parts in names for name in parts]
        return self.report


def _make_room(homes: Mapping[str, Home], manifest: Manifest) -> None:
    """Take the memory of the rows to come; tables keep what they hold."""
    for name, home in homes.items():
        if isinstance(home, HashStore) and name in manifest.tables:
            home.make_room(-(-manifest.tables[name].rows // home.share.count))


def _check_files(folder: Path, manifest: Manifest, of_others: set[str]) -> None:
    """Raise where files are damaged; the content of those that other ranks read is not looked at."""
    if problems := problems_of_files(folder, manifest, sums=manifest.files.keys() - of_others):
        listed = "; ".join(map(str, problems[:3]))
        raise CheckpointError(f"checkpoint {folder} is damaged: {listed}; load another checkpoint")


def _refusal(folder: Path, report: LoadReport) -> str:
    return "\n".join(
        [
            f"checkpoint {folder} does not fit:",
            *differences(report, 20),
            "Nothing was loaded. Mend what is named, give rename={saved name: name in the model}, or pass strict=False "
            "to load what fits and get a report of the rest.",
        ]
    )


def differences(report: LoadReport, most: int) -> list[str]:
    """A line for each of the first things that do not fit, and how many more there are."""
    lines = [f"  {name}: {why}" for name, why in report.skipped.items()]
    lines += [f"  {name}: the checkpoint does not have it" for name in report.missing]
    return lines[:most] + ([f"  … and {len(lines) - most} more"] if len(lines) > most else [])
