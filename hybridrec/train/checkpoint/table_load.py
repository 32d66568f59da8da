"""Tables of a checkpoint, compared with those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from hybridrec.embedding.store import WHOLE, Store
from hybridrec.train.checkpoint.load_report import LoadReport
from hybridrec.train.checkpoint.saved_table import SavedTable
from hybridrec.train.checkpoint.sketch_load import sketch_of
from hybridrec.train.checkpoint.table_info import Home, TableInfo, fit


class TableLoad:
    """Which saved tables, by their new names, the model can take; `old_names` are those that they were saved by."""

    def __init__(self, homes: Mapping[str, Home], saved: Mapping[str, TableInfo], old_names: Mapping[str, str]) -> None:
        self.homes, self.saved, self.old_names = homes, saved, old_names
        self.fits = {name: fit(saved[name], home) for name, home in homes.items() if name in saved}
        self.fitting = [name for name, found in self.fits.items() if found.misfit is None]

    def add_to(self, report: LoadReport) -> None:
        """Tell what does not fit, what would be lost, and what has changed."""
        strange = "the model does not have it"
        report.skipped |= {f"table {name}": strange for name in self.saved if name not in self.homes}
        report.missing += [f"table {name}" for name in self.homes if name not in self.saved]
        for name, found in self.fits.items():
            if found.misfit is not None:
                report.skipped[f"table {name}"] = found.misfit
            if found.losses:
                report.skipped[f"part of table {name}"] = "; ".join(found.losses)
            if found.notes:
                report.notes[f"table {name}"] = "; ".join(found.notes)

    @torch.no_grad()
    def apply(self, name: str, folder: Path) -> list[str]:
        """Load a table that fits, straight from the maps of its files; returns what is good to know."""
        home, info = self.homes[name], self.saved[name]
        if not isinstance(home, Store):
            for part in SavedTable(folder, info).chunks():
                home.weight.index_copy_(0, part.ids.to(home.weight.device), part.rows.to(home.weight))
            return []
        sketch, note = sketch_of(folder, self.old_names[name], info, home)
        held = SavedTable(folder, info, home, sketch)
        home.restore(held)
        full = f"{held.given_up} rows had no room, {held.most} being the capacity here: those of the lowest scores"
        return ([note] if note else []) + ([full] if held.given_up else [])


def files_of_others(homes: Mapping[str, Home], saved: Mapping[str, TableInfo]) -> set[str]:
    """The files of tables of which no store here takes anything: those of other ranks do."""
    found = set()
    for name, info in saved.items():
        home = homes.get(name)
        share = home.saved if isinstance(home, Store) else WHOLE
        columns = range(share.column, share.column + share.dim_of(info.dim))
        found |= {part.file for part in info.parts if not part.meets(share) or not _needed(info.columns(part), columns)}
    return found


def _needed(held: range, wanted: range) -> bool:
    """Whether a part with these columns is read: the first one always is, for what belongs to whole rows."""
    return held.start == 0 or max(held.start, wanted.start) < min(held.stop, wanted.stop)
