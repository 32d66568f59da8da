"""Rows as the cold tier keeps them: near to what they were, on average the same, and the same for ever after."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridrec.ops.row_cache.packing import draws_of, pack, packed_width, unpack

TYPES = [torch.float16, torch.bfloat16, torch.int8]
DIM = 5
UP = torch.tensor([[127, 0, 0]] * 6, dtype=torch.uint16)
INFINITE, NAN = float("inf"), float("nan")


def rows(count: int = 3000) -> Tensor:
    """Rows of many sizes, some with numbers that are all alike, or none."""
    torch.manual_seed(0)
    made = torch.randn(count, DIM) * torch.exp2(torch.randint(-40, 14, (count, 1)).float())
    made[::50] = made[::50, :1]
    made[::77] = 0
    return made


def drawn(count: int, number: int, dim: int = DIM) -> Tensor:
    return draws_of(7, torch.arange(count), dim, number)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int8), other.view(torch.int8))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("first", [None, 1], ids=["to nearest", "by chance"])
def test_rows_that_are_packed_again_are_the_same_however_they_are_rounded(dtype, first):
    given = rows()
    packed = pack(given, dtype, None if first is None else drawn(len(given), first))
    again = unpack(packed, given)
    for draws in (None, drawn(len(given), 2), torch.zeros_like(drawn(1, 1)), drawn(1, 1).fill_(2**16 - 1)):
        draws = None if draws is None else draws.expand(len(given), DIM).contiguous()
        assert same_bits(pack(again, dtype, draws), packed)


@pytest.mark.parametrize(("draws", "most"), [(None, 0.5), (1, 1.0)], ids=["to nearest", "by chance"])
def test_numbers_in_int8_are_off_by_half_a_step_or_by_chance_a_whole_one(draws, most):
    given = rows()
    found = unpack(pack(given, torch.int8, draws and drawn(len(given), draws)), given)
    step = given.abs().amax(1, keepdim=True) / 127
    assert bool(((found - given).abs() <= step * (most + 127 * 2**-16)).all())
    assert bool(((found - given).abs() > step * 0.4).any())


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_are_the_same_on_average_the_largest_of_a_row_too(dtype):
    row = torch.tensor([0.3, -0.0004, 1.00004, -0.7777, 1e-4])
    many = row.expand(40_000, DIM).contiguous()
    found = unpack(pack(many, dtype, drawn(len(many), 1)), many).double()
    off = (found.mean(0) - row).abs()
    assert bool((off < 5 * found.std(0) / len(many) ** 0.5 + 1e-7).all())
    assert bool((found != found[0]).any(0)[[0, 1, 3, 4]].all())  # up and down
    nearest = unpack(pack(row[None], dtype), many)[0]
    assert not bool(((nearest - row).abs() < 5 * found.std(0) / len(many) ** 0.5 + 1e-7).all())


@pytest.mark.parametrize(("dtype", "step"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8), (torch.int8, 1 / 127)])
def test_changes_far_below_a_step_add_up_over_many_exchanges(dtype, step):
    start = torch.tensor([0.51, -0.6, 1.0, 0.7, -0.55]).expand(1000, DIM)
    change = torch.tensor([1.0, 1, 0, -1, 1]) * step / 20
    drawn_rows = nearest = start.contiguous()
    for number in range(40):
        drawn_rows = unpack(pack(drawn_rows + change, dtype, drawn(1000, number)), start)
        nearest = unpack(pack(nearest + change, dtype), start)
    off = (drawn_rows.double().mean(0) - start[0] - 40 * change).abs()
    assert bool((off < 5 * drawn_rows.std(0) / 1000**0.5 + 1e-6).all())
    assert bool((((nearest[0] - start[0]).abs() < step) | (change == 0)).all())  # where two steps were to come


def test_numbers_of_one_row_are_rounded_by_draws_that_have_nothing_to_do_with_each_other():
    row = torch.full((1, DIM), 0.503)
    row[0, 4] = 1.00004  # what the scale is rounded by is a sum of all draws
    many = row.expand(40_000, DIM).contiguous()
    found = unpack(pack(many, torch.int8, drawn(len(many), 1)), many).double()
    found = found - found.mean(0)
    assert bool(((found.T @ found / len(many)).fill_diagonal_(0).abs() < 0.03 * found.std(0).max() ** 2).all())


@pytest.mark.parametrize("draws", [None, drawn(6, 1, 3), UP], ids=["to nearest", "by chance", "scales up"])
def test_int8_keeps_zeros_finite_numbers_finite_and_others_not(draws):
    largest = torch.finfo(torch.float32).max
    odd = [[INFINITE, 1, 2], [1, NAN, 2], [-INFINITE, NAN, 0]]
    given = torch.tensor([[0, -0.0, 0], *odd, [1e-40, 2e-38, 0], [largest, 0, -largest]])
    packed = pack(given, torch.int8, draws)
    found = unpack(packed, torch.empty(0, 3))
    assert found[0].tolist() == found[4].tolist() == [0, 0, 0]  # all below what a scale can be
    assert bool(found[1:4].isnan().all())
    assert bool(found[5].isfinite().all())
    assert found[5].abs().max() > largest * 0.9999
    assert same_bits(pack(found, torch.int8, draws), packed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("draws", [None, drawn(2, 1, 3)], ids=["to nearest", "by chance"])
def test_half_types_keep_what_is_not_finite(dtype, draws):
    given = torch.tensor([[INFINITE, 1.0, -INFINITE], [NAN, 0.0, 2.0]])
    found = unpack(pack(given, dtype, draws), given)
    assert torch.equal(found.nan_to_num(9.0, 7.0, -7.0), given.nan_to_num(9.0, 7.0, -7.0))


def test_float32_rows_that_are_kept_as_they_are_lose_no_bit():
    given = rows(9)
    assert same_bits(unpack(pack(given, torch.float32, drawn(9, 1)), given), given)


def test_a_row_of_int8_has_its_scale_beside_it_and_whole_words():
    assert [packed_width(dim, torch.int8) for dim in (1, 4, 5, 128)] == [8, 8, 12, 132]
    assert packed_width(5, torch.float16) == 5
    packed = pack(torch.tensor([[127.0, -1.0, 3.2, 0.0, 0.0]]), torch.int8)
    assert packed[:, :4].view(torch.float32).tolist() == [[1.0]]
    assert packed[0, 4:].tolist() == [127, -1, 3, 0, 0, 0, 0, 0]
