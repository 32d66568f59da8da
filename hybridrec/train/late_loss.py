"""LateLoss: the loss of a step that a GPU may still be computing; LateLosses: those of the last steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hybridrec.types import Batch

AHEAD = 4  # steps that may have been launched while the loss of one is on its way
LARGE = 1 << 28  # bytes of ids from which that is one step: it takes long, and each keeps its batch on the GPU


def steps_ahead(ids: int) -> int:
    """How many steps on batches with so many bytes of ids may have been launched while a loss is on its way.

    >>> steps_ahead(1 << 20), steps_ahead(1 << 30)
    (4, 1)
    """
    return 1 if ids >= LARGE else AHEAD


class LossNotFinite(FloatingPointError):
    """A loss that is NaN or infinite. `late`: it is that of so many steps before, which a GPU has done meanwhile."""

    def __init__(self, loss: float, outputs: Tensor, batch: Batch, late: int = 0) -> None:
        after = "In this step the layers kept still, and so did rows without a finite gradient"
        super().__init__(
            f"the loss is {loss}; {_why(outputs, batch)}. {after if late else 'This step changed nothing'}"
        )
        self.late = late


class LateLoss:
    """A loss on its way to the host, and the outputs it came of. `float(late)` waits for it.

    `loss` is the number on the device, for what must not wait. `check()` refuses a loss that is not finite, and does
    what else can be known only then (`also`).
    """

    def __init__(self, loss: Tensor, outputs: Tensor, batch: Batch, also: Callable[[], None]) -> None:
        self.loss = loss
        self.ahead = steps_ahead(batch.ids.values.nbytes)
        self.outputs, self._also = outputs, also
        self._batch: Batch | None = batch  # until it is checked
        self._there = torch.empty((), pin_memory=loss.is_cuda).copy_(loss, non_blocking=True)
        self._ready = torch.cuda.current_stream(outputs.device).record_event()
        self._value: float | None = None  # once it is known

    def __float__(self) -> float:
        if self._value is None:
            self._ready.synchronize()
            self._value = _number(self._there)
        return self._value

    def known(self) -> bool:
        """Whether nobody would have to wait for it."""
        if self._value is None and self._ready.query():
            self._value = _number(self._there)
        return self._value is not None

    def check(self, ago: int = 1) -> None:
        """Wait for the loss, of so many steps ago; LossNotFinite where it is not finite."""
        value, batch = float(self), self._batch
        self._also()
        if not math.isfinite(value) and batch is not None:
            raise LossNotFinite(value, self.outputs, batch, late=ago)
        self._batch = None


def _number(there: Tensor) -> float:
    """What a scalar on the host holds; `float(there)` would let go of the interpreter, which others then may keep."""
    found: Any = there.tolist()
    return found


class LateLosses:
    """Those of the last steps, of which the host may be ahead, so that a moment's delay of it is none for the GPU."""

    def __init__(self) -> None:
        self._waiting: deque[LateLoss] = deque()

    def add(self, late: LateLoss) -> None:
        """That of the step which has just been launched."""
        self._waiting.append(late)

    def check(self, most: int = AHEAD) -> None:
        """Check those that are known, and wait until at most so many are not. After an error all are forgotten.

        Of steps on large batches fewer are waiting: see `steps_ahead`.
        """
        most = min([most, *(each.ahead for each in self._waiting)])
        try:
            while self._waiting and (len(self._waiting) > most or self._waiting[0].known()):
                ago = len(self._waiting)
                self._waiting.popleft().check(ago)
        except BaseException:
            self._waiting.clear()
            raise


def _why(outputs: Tensor, batch: Batch) -> str:
    """What is known of a loss that is not finite."""
    spoilt = int((~outputs.isfinite()).flatten(1 if outputs.dim() > 1 else 0).sum())
    if batch.dense.numel() and not bool(batch.dense.isfinite().all()):
        return f"dense columns {_bad_columns(batch)}"
    if spoilt:
        return "the outputs of the model are not finite: lower the learning rates, or clip gradients (clip_norm=1.0)"
    return "the outputs of the model are finite: look at the loss function and the sample weights"


def _bad_columns(batch: Batch) -> str:
    """Which columns hold values that are not finite, and what helps: no limit and no default stands in for NaN."""
    remedies = {
        "hold NaN: write it as null, which is read as the default of the column, or make ids of it, Bucketize([...])": (
            batch.dense.isnan()
        ),
        "hold infinite values: limit them, Clip(low, high)": batch.dense.isinf(),
    }
    told = []
    for remedy, bad in remedies.items():
        columns = bad.any(0).nonzero()[:, 0].tolist()
        names = [batch.dense_names[at] if batch.dense_names else str(at) for at in columns]
        told += [f"{', '.join(names)} {remedy}"] if names else []
    return "; ".join(told)
