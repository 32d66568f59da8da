"""TensorBoard events beside metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridrec.train.callbacks import Callback

if TYPE_CHECKING:
    from hybridrec.train.trainer import Trainer


class TensorBoard(Callback):
    """Writes the numbers of every record as events, by default to `tensorboard/` in the run directory.

    Of many ranks, rank 0 writes.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard events need: pip install tensorboard") from None
        self._make, self._folder, self._writer = SummaryWriter, folder, None

    def on_start(self, trainer: Trainer) -> None:
        folder = self._folder or (None if trainer.run is None else trainer.run.path / "tensorboard")
        if folder is None:
            raise ValueError("TensorBoard() has no folder to write to; give it one, or the Trainer out=")
        if trainer.is_main:
            self._writer = self._make(str(folder), purge_step=trainer.step + 1)

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if self._writer is not None and isinstance(value, float):
                self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def on_end(self, trainer: Trainer) -> None:
        if self._writer is not None:
            self._writer.close()
