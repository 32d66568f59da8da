"""LateLoss: the loss of a step that a GPU may still be computing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hybridrec.types import Batch


class LossNotFinite(FloatingPointError):
    """A loss that is NaN or infinite. `late`: it is that of the step before, which the GPU has done meanwhile."""

    def __init__(self, loss: float, outputs: Tensor, batch: Batch, late: bool = False) -> None:
        after = "In this step the layers kept still, and so did rows without a finite gradient"
        super().__init__(
            f"the loss is {loss}; {_why(outputs, batch)}. {after if late else 'This step changed nothing'}"
        )
        self.late = late


class LateLoss:
    """A loss on its way to the host. `float(loss)` waits for it, `check()` also refuses one that is not finite."""

    def __init__(self, loss: Tensor, outputs: Tensor, batch: Batch) -> None:
        self._outputs, self._batch = outputs, batch
        self._there = torch.empty((), dtype=loss.dtype, pin_memory=True)
        self._there.copy_(loss, non_blocking=True)
        self._ready = torch.cuda.current_stream(loss.device).record_event()

    def __float__(self) -> float:
        self._ready.synchronize()
        return float(self._there)

    def check(self) -> None:
        """Wait for the loss; LossNotFinite where it is not finite."""
        if not math.isfinite(float(self)):
            raise LossNotFinite(float(self), self._outputs, self._batch, late=True)


def _why(outputs: Tensor, batch: Batch) -> str:
    """What is known of a loss that is not finite."""
    spoilt = int((~outputs.isfinite()).flatten(1 if outputs.dim() > 1 else 0).sum())
    if batch.dense.numel() and not bool(batch.dense.isfinite().all()):
        bad = (~batch.dense.isfinite()).any(0).nonzero()[:, 0].tolist()
        names = [batch.dense_names[at] if batch.dense_names else str(at) for at in bad]
        return f"dense columns {', '.join(names)} hold values that are not finite: give them Clip() or a default"
    if spoilt:
        return "the outputs of the model are not finite: lower the learning rates, or clip gradients (clip_norm=1.0)"
    return "the outputs of the model are finite: look at the loss function and the sample weights"
