"""Rows that the host hands over: where the plain code has them, and to the last bit what they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_cache import reference, staged
from hybridrec.ops.row_cache.cache import Column, RowCache
from hybridrec.ops.row_cache.packing import pack, unpack
from hybridrec.ops.row_cache.staged import Stage
from hybridrec.ops.row_cache.triton import admit, land
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, IN_ORDER, needs_gpu
from tests.ops.row_cache.caches import SMALL, contents, made, same_bits, sound

pytestmark = needs_gpu

ROWS, SLOTS = 40, 15
CPU = torch.device("cpu")


def away(values: list[Tensor], kept: torch.dtype | None = None) -> RowCache:
    """A cache with cold rows in memory that kernels cannot reach."""
    cache = made(ROWS, SLOTS, values, DEVICE, SMALL, kept)
    cache.columns[:] = [Column(hot, cold.clone()) for hot, cold in cache.columns]
    return cache


def fine() -> None:
    """Cold rows can be read."""


@pytest.mark.parametrize("count", [8, 25], ids=["all are admitted", "some are refused"])
def test_admissions_agree_with_the_plain_code_and_no_bit_of_a_row_changes(count: int) -> None:
    torch.manual_seed(count)
    values = [torch.randn(ROWS, 3), torch.randn(ROWS)]
    cache, plain, stage = away(values), made(ROWS, SLOTS, values, CPU), Stage(fine)
    for step in range(5):
        rows = torch.randint(0, ROWS, (count,))
        rows[::6] = (-1, ROWS)[step % 2]
        found, expected = admit(cache, rows.to(DEVICE), stage.exchange), reference.admit(plain, rows)
        if IN_ORDER:
            assert torch.equal(found.slots, expected.slots)
            assert torch.equal(cache.directory, plain.directory)
            assert torch.equal(cache.lasting, plain.lasting)
        land(cache, found.number)
        reference.land(plain, expected.number)
        if step % 2:  # else the next admission does it first
            stage.put_back()
            assert all(same_bits(contents(cache, n), column) for n, column in enumerate(values))
        sound(cache)
    assert cache.figures().moved > 0
    assert (cache.figures().refused > 0) == (count == 25)


def test_rows_that_went_in_one_admission_come_back_in_the_next_as_they_were_changed() -> None:
    cache, stage = away([torch.zeros(ROWS, 2)]), Stage(fine)
    for rows in (torch.arange(SLOTS), torch.arange(SLOTS) + SLOTS, torch.arange(SLOTS)):
        slots, number = admit(cache, rows.to(DEVICE), stage.exchange)
        cache.columns[0].hot[slots] += rows[:, None].to(DEVICE)
        land(cache, number)
    stage.put_back()
    expected = torch.arange(ROWS) * torch.tensor([2, 1, 0]).repeat_interleave(SLOTS)[:ROWS]
    assert torch.equal(contents(cache, 0)[:, 0], expected.float())


def test_what_is_written_to_places_later_stays() -> None:
    cache, stage = away([torch.zeros(ROWS, 2)]), Stage(fine)
    land(cache, admit(cache, torch.tensor([39, 30], device=DEVICE), stage.exchange).number)
    stage.put_back()
    staged.write(cache, 0, torch.arange(ROWS, device=DEVICE), torch.ones(ROWS, 2, device=DEVICE))
    land(cache, admit(cache, torch.tensor([20], device=DEVICE), stage.exchange).number)
    stage.put_back()
    assert torch.equal(contents(cache, 0), torch.ones(ROWS, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_packed_rows_that_nobody_trains_can_change_tiers_for_ever(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = torch.randn(ROWS, 5)
    rows = unpack(pack(rows, dtype), rows)  # as a row is that was cold
    cache, stage = away([rows], dtype), Stage(fine)
    for _ in range(6):
        land(cache, admit(cache, torch.randint(0, ROWS, (9,)).to(DEVICE), stage.exchange).number)
    stage.put_back()
    assert torch.equal(contents(cache, 0), rows)
    assert cache.figures().moved > SLOTS


@pytest.mark.parametrize("kept", [torch.float32, torch.int8])
def test_rows_are_read_and_written_as_by_the_plain_code(kept: torch.dtype) -> None:
    torch.manual_seed(1)
    values = [torch.randn(ROWS, 5), torch.randn(ROWS)]
    cache, plain = away(values, kept), made(ROWS, SLOTS, values, CPU, SMALL, kept)
    rows = torch.tensor([3, 39, -1, ROWS, 20, 2**62, 0, NO_ID, 15])
    for column, width in ((0, (5,)), (1, ())):
        new = torch.randn(len(rows), *width)
        staged.write(cache, column, rows.to(DEVICE), new.to(DEVICE))
        reference.write(plain, column, rows, new)
        assert torch.equal(contents(cache, column), contents(plain, column))
        found = staged.read(cache, column, rows.to(DEVICE))
        assert torch.equal(found.cpu(), reference.read(plain, column, rows))


def test_an_admission_whose_cold_rows_cannot_be_read_moves_none_and_the_next_may() -> None:
    broken = [OSError("gone")]

    def check() -> None:
        if broken:
            raise broken[0]

    values = [torch.randn(ROWS, 3)]
    cache, stage, rows = away(values), Stage(check), torch.tensor([39, 2, 30, 39], device=DEVICE)
    before = cache.directory.clone()
    slots, number = admit(cache, rows, stage.exchange)
    assert slots.tolist() == [NO_ID] * 4
    assert stage.failed() is broken.pop()
    assert stage.failed() is None
    assert torch.equal(cache.directory, before)
    assert (cache.figures().moved, cache.figures().refused) == (0, 0)
    land(cache, number)
    slots = admit(cache, rows, stage.exchange).slots
    stage.put_back()
    assert torch.equal(cache.owner[slots].long(), rows)
    assert same_bits(contents(cache, 0), values[0])


def test_rows_that_cannot_be_put_back_are_kept_until_they_can() -> None:
    broken: list[OSError] = []

    def check() -> None:
        if broken:
            raise broken[0]

    values = [torch.randn(ROWS, 3)]
    cache, stage = away(values), Stage(check)
    land(cache, admit(cache, torch.tensor([39, 30], device=DEVICE), stage.exchange).number)
    broken.append(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        stage.put_back()
    land(cache, admit(cache, torch.tensor([20], device=DEVICE), stage.exchange).number)
    assert stage.failed() is broken.pop()
    stage.put_back()
    sound(cache)
    assert same_bits(contents(cache, 0), values[0])
