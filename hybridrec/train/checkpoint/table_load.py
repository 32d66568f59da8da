"""Tables of a checkpoint, compared with those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hybridrec.embedding.store import RowData, Snapshot, Store
from hybridrec.train.checkpoint.load_report import LoadReport
from hybridrec.train.checkpoint.table_file import read_table
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
        data = read_table(folder / info.file, info)
        if not isinstance(home, Store):
            home.weight.index_copy_(0, data.ids, data.rows.to(home.weight.dtype))
            return
        data = data._replace(rows=data.rows.to(home.dtype), state=self._state(home, info, data))
        if home.rule is not None and not data.state:
            home.attach(home.rule)  # what is beside the rows now belongs to others
        same_sketch = info_of(home, info.file).sketch == info.sketch
        home.restore(Snapshot(data, info.clock, home.rule, sketch if same_sketch else None))

    @staticmethod
    def _state(home: Store, info: TableInfo, data: RowData) -> Mapping[str, Tensor]:
        return data.state if home.rule is not None and home.rule == info.rule else {}
