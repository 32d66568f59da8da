"""Dense weights of a checkpoint, compared with those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hybridrec.train.checkpoint.homes import plain, rows_left_out, state_without_rows
from hybridrec.train.checkpoint.load_report import LoadReport
from hybridrec.train.manifest_body import CheckpointError


class WeightLoad:
    """Which saved weights, by their new names, the model can take; parts that are no tensors are among them."""

    def __init__(self, model: nn.Module, saved: Mapping[str, Any]) -> None:
        self.model, self.saved = model, saved
        self.own = state_without_rows(model)
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        self.kept = {plain(name): part for name, part in tensors}  # others may have any size: a module's own affair
        self.skipped = {name: why for name in saved if (why := self._misfit(name)) is not None}
        self.missing = [name for name in self.own if name not in saved]
        self.fitting = [name for name in self.own if name in saved and name not in self.skipped]
        self.notes: dict[str, str] = {}

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the saved tensors."""
        return {name: list(part.shape) for name, part in self.saved.items() if isinstance(part, Tensor)}

    def _misfit(self, name: str) -> str | None:
        part, own = self.saved[name], self.kept.get(name)
        if name not in self.own:
            return "the model does not have it"
        if own is None or is_lazy(own):
            return None
        if not isinstance(part, Tensor) or part.shape != own.shape:
            found = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
            return f"its shape was {found} and is {list(own.shape)}"
        if part.dtype != own.dtype:
            return f"its dtype was {part.dtype} and is {own.dtype}; convert the model, load, and convert it back"
        return None

    def add_to(self, report: LoadReport) -> None:
        """Tell what does not fit."""
        report.skipped |= {f"weight {name}": why for name, why in self.skipped.items()}
        report.missing += [f"weight {name}" for name in self.missing]

    def apply(self, folder: Path) -> None:
        """Load what fits, through the hooks of the modules."""
        with rows_left_out(self.model):
            names = {plain(name): name for name in self.model.state_dict()}
            parts = {names[name]: self.saved[name] for name in self.fitting}
            try:
                self.model.load_state_dict(parts, strict=False)
            except RuntimeError as error:
                raise CheckpointError(
                    f"checkpoint {folder} does not fit a module of the model, which is partly loaded now: {error}"
                ) from None
