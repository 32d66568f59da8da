"""Admissions that Ctrl-C breaks off, or a card without room for one more kernel: each row is in one tier, as it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_cache import triton as admitting
from hybridrec.ops.row_cache import triton_clock, triton_rows
from hybridrec.ops.row_cache.staged import Stage
from hybridrec.ops.row_cache.triton import admit, land
from tests.gpu import DEVICE, needs_gpu
from tests.ops.row_cache.caches import contents, made, same_bits, sound

pytestmark = needs_gpu

ROWS, SLOTS = 40, 12
LAUNCHES = [
    *((admitting, "find_rows", 0), (triton_clock, "count_idle", 0), (triton_clock, "take_idle", 1)),
    *((admitting, "conclude", 0), (triton_rows, "exchange_packed", 0), (triton_rows, "exchange_rows", 0)),
    *((triton_rows, "exchange_rows", 1), (admitting, "rename", 0), (admitting, "translate", 0)),
]


class Broken:
    """A kernel of which one launch, after so many, is not made; or it is `made`, and Ctrl-C comes."""

    def __init__(self, kernel: Any, after: int, made: bool) -> None:
        self._kernel, self._left, self._made = kernel, after, made

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            self._left -= 1
            if self._left == -1 and not self._made:
                raise KeyboardInterrupt
            self._kernel[grid](*args, **options)
            if self._left == -1:
                signal.raise_signal(signal.SIGINT)

        return launch


@pytest.mark.parametrize(("module", "kernel", "after"), LAUNCHES, ids=lambda each: str(getattr(each, "__name__", each)))
@pytest.mark.parametrize("host", ["reached", "handing over"])
@pytest.mark.parametrize("launched", [False, True])
def test_no_row_is_lost_where_an_admission_is_broken_off(
    module: ModuleType, kernel: str, after: int, host: str, launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = torch.randint(-127, 128, (ROWS, 3)).float()
    steps[:, 0] = 127  # so that int8 keeps them to the bit
    values = [steps, torch.randn(ROWS, 3), torch.randn(ROWS)]
    cache, stage = made(ROWS, SLOTS, values, DEVICE, kept=torch.int8), Stage(lambda: None)
    how = (triton_rows.exchange if host == "reached" else stage.exchange,)
    land(cache, admit(cache, torch.tensor([39, 5, 20], device=DEVICE), *how).number)
    rows = torch.tensor([30, 31, 5, 30, 32], device=DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(module, kernel, Broken(getattr(module, kernel), after, launched))
        with pytest.raises(KeyboardInterrupt):
            admit(cache, rows, *how)
    stage.put_back()
    sound(cache)
    assert all(same_bits(contents(cache, n), column) for n, column in enumerate(values))
    slots, number = admit(cache, rows, *how)
    land(cache, number)
    stage.put_back()
    sound(cache)
    assert torch.equal(cache.owner[slots].long(), rows)
    assert all(same_bits(contents(cache, n), column) for n, column in enumerate(values))


@pytest.mark.parametrize("large", range(3))
def test_no_row_is_lost_where_a_card_has_memory_for_few_large_tensors(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, rows, left = made(ROWS, SLOTS, [torch.randn(ROWS, 3)], DEVICE), torch.arange(20, 30, device=DEVICE), large

    def lacking(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocated(*args: Any, **options: Any) -> torch.Tensor:
            nonlocal left
            found = make(*args, **options)
            left -= found.numel() >= len(rows)
            if left < 0:
                raise torch.OutOfMemoryError("no memory is left")
            return found

        return allocated

    with monkeypatch.context() as patch:
        patch.setattr(admitting, "AT_ONCE", 4)
        patch.setattr(torch, "empty", lacking(torch.empty))
        patch.setattr(torch.Tensor, "long", lacking(torch.Tensor.long))
        with pytest.raises(torch.OutOfMemoryError):
            admit(cache, rows)
    sound(cache)
