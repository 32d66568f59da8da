"""Rows whose cold ones are packed, on the GPU: to the last bit what the plain code makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_cache import reference
from hybridrec.ops.row_cache.cache import RowCache, Sizes
from hybridrec.ops.row_cache.packing import draws_of, pack, unpack
from hybridrec.ops.row_cache.triton import admit, land, read, write
from tests.gpu import DEVICE, IN_ORDER, INTERPRETED, needs_gpu, scaled
from tests.ops.row_cache.caches import SMALL, contents, made, sound

pytestmark = needs_gpu

ROWS, SLOTS = 40, 14
CPU = torch.device("cpu")
TYPES = [torch.float16, torch.bfloat16, torch.int8]
ROUGH = replace(SMALL, ids=64, block=8, numbers=64)  # for the interpreter
ODD = torch.tensor([[float("nan")], [float("inf")], [0.0], [1e-30], [70_000.0], [3.4e38], [-(2.0**-15)]])


def numbers(dim: int) -> Tensor:
    """Rows of many sizes, and such as half types or int8 cannot hold."""
    torch.manual_seed(dim)
    rows = torch.randn(ROWS, dim) * torch.exp2(torch.randint(-9, 9, (ROWS, 1)).float())
    rows[SLOTS : SLOTS + len(ODD)], rows[: len(ODD), :1] = ODD, ODD
    return rows


def alike(found: Tensor, expected: Tensor) -> bool:
    """Whether they are equal, NaN too."""
    return torch.equal(*(part.cpu().nan_to_num(nan=12.5, posinf=float("inf")) for part in (found, expected)))


def same(cache: RowCache, plain: RowCache) -> bool:
    pairs = zip((part for c in cache.columns for part in c), (part for c in plain.columns for part in c), strict=True)
    return all(alike(found.float(), expected.float()) for found, expected in pairs)


@pytest.mark.parametrize(
    ("dim", "dtype"), [(1, torch.int8), (5, torch.int8), (9, torch.int8), (3, torch.float16), (5, torch.bfloat16)]
)
def test_rows_are_packed_read_and_written_as_by_the_plain_code(dim: int, dtype: torch.dtype) -> None:
    values = [numbers(dim), torch.randn(ROWS)]
    sizes = SMALL if dtype == torch.bfloat16 else ROUGH
    cache, plain = (made(ROWS, SLOTS, values, device, sizes, dtype) for device in (DEVICE, CPU))
    every = torch.arange(-1, ROWS + 1)
    for step in range(2):
        rows = torch.arange(11) + SLOTS + 11 * step  # all are cold, and so one list, in whatever order
        found, expected = admit(cache, rows.to(DEVICE)), reference.admit(plain, rows)
        if IN_ORDER:  # which place a row gets decides its draws
            assert torch.equal(found.slots, expected.slots)
            assert same(cache, plain)
        sound(cache)
        assert alike(read(cache, 1, every.to(DEVICE)), reference.read(plain, 1, every))
        land(cache, found.number)
        reference.land(plain, expected.number)
    new, rows = numbers(dim).flip(0), torch.arange(ROWS)
    write(cache, 0, rows.to(DEVICE), new.to(DEVICE))
    reference.write(plain, 0, rows, new)
    if IN_ORDER:
        assert same(cache, plain)
    cold = cache.directory.cpu() < 0
    for each in (read(cache, 0, every.to(DEVICE))[1:-1], contents(cache, 0)):
        assert alike(each, torch.where(cold[:, None], unpack(pack(new, dtype), new), new))


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_nobody_trains_change_tiers_for_ever_and_stay_the_same(dtype: torch.dtype) -> None:
    cache = made(ROWS, SLOTS, [numbers(6)], DEVICE, ROUGH, dtype)
    land(cache, admit(cache, torch.arange(26, 40, device=DEVICE)).number)  # from now on, each row has been cold
    was = contents(cache, 0)
    for first in (14, 2, 26):
        land(cache, admit(cache, torch.arange(first, first + 14, device=DEVICE)).number)
        assert alike(contents(cache, 0), was)
    assert cache.figures().moved == 14 + 12 + 12 + 14


def test_rows_are_rounded_by_the_place_they_go_to_and_by_the_admission() -> None:
    row = torch.tensor([[0.31, -0.772, 1.00004, 0.123, 0.5077]])
    cache = made(ROWS, SLOTS, [row.expand(ROWS, 5)], DEVICE, ROUGH, torch.int8)
    seen = set()
    for number in (1, 2):
        cache.columns[0].hot.copy_(row.expand(SLOTS, 5))  # as if each had taken a step
        cold = (cache.directory < 0).nonzero().view(-1)[:6]
        places = (-1 - cache.directory[cold]).cpu()
        land(cache, admit(cache, cold).number)
        sound(cache)  # waits for the device
        expected = pack(row.expand(6, 5), torch.int8, draws_of(cache.key, places.long(), 5, number))
        assert torch.equal(cache.columns[0].cold[places.long()], expected)
        seen |= set(map(tuple, expected.tolist()))
    assert len(seen) > 3  # of 12


def test_bytes_that_moved_are_those_of_packed_rows_and_of_their_state() -> None:
    cache = made(ROWS, SLOTS, [torch.randn(ROWS, 6), torch.randn(ROWS)], DEVICE, kept=torch.int8)
    admit(cache, torch.tensor([0, 30, 31], device=DEVICE))
    assert (cache.row_bytes, cache.cold_bytes, cache.figures().bytes_each_way) == (28, 16, 32)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no threads that could meet")
@pytest.mark.parametrize("dtype", TYPES)
def test_large_batches_leave_each_row_within_a_step_of_what_it_was(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count, ids = scaled(60, 1_000_000), scaled(12, 200_000)
    values = torch.randn(count, 32)
    cache = made(count, ids, [values], DEVICE, Sizes(), dtype)
    for _ in range(scaled(6, 30)):
        rows = (torch.rand(ids) ** 3 * count).long().unique().to(DEVICE)
        slots, number = admit(cache, rows)
        found, expected = cache.columns[0].hot[slots], values.to(DEVICE)[rows]
        assert bool(((found - expected).abs() <= 0.009 * expected.abs().amax(1, keepdim=True)).all())
        land(cache, number)
    assert cache.figures().moved > 0
    sound(cache)
