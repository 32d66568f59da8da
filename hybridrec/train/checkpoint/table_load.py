"""Tables of a checkpoint, compared with those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hybridrec.embedding.store import Store
from hybridrec.train.checkpoint.load_report import LoadReport
from hybridrec.train.checkpoint.table_file import SavedTable
from hybridrec.train.checkpoint.table_info import Home, TableInfo, fit, info_of


class TableLoad:
    """Which saved tables, by their new names, the model can take."""

    def __init__(self, homes: Mapping[str, Home], saved: Mapping[str, TableInfo]) -> None:
        self.homes, self.saved = homes, saved
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
    def apply(self, name: str, folder: Path, sketch: Tensor | None) -> None:
        """Load a table that fits, straight from the map of its file."""
        home, info = self.homes[name], self.saved[name]
        path = folder / info.file
        if not isinstance(home, Store):
            for part in SavedTable(path, info).chunks():
                home.weight.index_copy_(0, part.ids.to(home.weight.device), part.rows.to(home.weight))
            return
        same_sketch = info_of(home, info.file).sketch == info.sketch
        same_rule = home.rule is not None and home.rule == info.rule
        home.restore(SavedTable(path, info, home.rule, sketch if same_sketch else None, state=same_rule))
