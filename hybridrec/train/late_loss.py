"""LateLoss: the loss of a step that a GPU may still be computing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import count

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


AWAITED = 0x7FC0_0A3D  # the bits of a NaN that no sum comes to: a loss that is not there yet
SPINS, PAUSE = 50, 2e-5  # looks without a pause, for steps that are short, and the seconds between later ones


class LateLoss:
    """A loss on its way to the host, to `there`, and the outputs it came of. `float(loss)` waits for it.

    It comes before its step is done: whoever waits for it has the time of the backward to launch what is next. `there`
    was made by `expected`. `loss` is the number on the device, for what must not wait. The place is used again by the
    next step, so `check()` comes before that: it refuses a loss that is not finite, and does what else can only be
    known now (`also`).
    """

    def __init__(self, there: Tensor, loss: Tensor, outputs: Tensor, batch: Batch, also: Callable[[], None]) -> None:
        self.loss = loss
        self.outputs, self._batch, self._also = outputs, batch, also
        self._there: Tensor | None = there
        self._value = math.nan
        self._done = torch.cuda.current_stream(outputs.device).record_event()

    def __float__(self) -> float:
        if self._there is not None:
            self._wait(self._there.view(torch.int32))
            self._value, self._there = float(self._there), None
        return self._value

    def _wait(self, bits: Tensor) -> None:
        """Until the number is there, or the step is done; a device that has failed says so."""
        for looks in count():
            if bits.item() != AWAITED or (looks >= SPINS and self._done.query()):
                return
            time.sleep(0 if looks < SPINS else PAUSE)  # lets other threads run

    def check(self) -> None:
        """Wait for the loss; LossNotFinite where it is not finite."""
        value = float(self)
        self._also()
        if not math.isfinite(value):
            raise LossNotFinite(value, self.outputs, self._batch, late=True)


def expected(there: Tensor) -> None:
    """Before a step that brings its loss here: none is there.

    >>> there = torch.tensor(0.5)
    >>> expected(there)
    >>> there
    tensor(nan)
    """
    there.view(torch.int32).fill_(AWAITED)


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
