"""Dot products of pairs against plain autograd; their kernels run on a card, or through the interpreter."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from hybridrec.ops.pair_dots.reference import pair_dots as reference
from tests.gpu import DEVICE, INTERPRETED, needs_gpu

pytest.importorskip("triton", reason="the kernels come with triton")

from hybridrec.ops.pair_dots import triton as kernels
from hybridrec.ops.pair_dots.op import pair_dots as by

pair_dots = partial(by, kernels)
pytestmark = needs_gpu

ROUNDING = 1e-6 if INTERPRETED else 2e-3  # the interpreter multiplies float32, a card TF32


def made(rows: int, fields: int, dim: int, below: bool) -> tuple[Tensor | None, Tensor]:
    draw = torch.Generator().manual_seed(rows + 10 * fields + dim)
    parts = [torch.randn(rows, width, generator=draw).to(DEVICE).requires_grad_() for width in (dim, fields * dim)]
    return parts[0] if below else None, parts[1]


def results(run, below: Tensor | None, fields: Tensor, *options: int) -> list[Tensor]:
    out = run(below, fields, *options)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    leaves = [fields] if below is None else [below, fields]
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.parametrize(
    ("rows", "fields", "dim", "below"),
    [(3, 26, 16, True), (2, 3, 8, True), (2, 2, 20, False), (1, 17, 5, True), (0, 3, 8, True), (2, 31, 4, False)],
)
def test_pairs_are_multiplied_as_torch_does(rows, fields, dim, below):
    given = made(rows, fields, dim, below)
    ours = results(pair_dots, *given, dim)
    assert ours[0].shape[1] % 16 == 0
    for one, other in zip(ours, results(reference, *given, dim, ours[0].shape[1]), strict=True):
        largest = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, atol=ROUNDING * largest, rtol=0)


def test_vectors_may_be_part_of_wider_rows():
    below, fields = made(4, 3, 8, below=True)
    wide = torch.cat([fields, torch.full((4, 8), torch.nan, device=DEVICE)], 1)[:, :24]
    torch.testing.assert_close(pair_dots(below, wide, 8), pair_dots(below, fields, 8))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no products of bfloat16")
def test_autocast_multiplies_in_its_type():
    below, fields = made(64, 26, 32, below=True)
    assert below is not None
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        ours = results(pair_dots, below.bfloat16().detach().requires_grad_(), fields, 32)
    assert [each.dtype for each in ours] == [torch.bfloat16, torch.bfloat16, torch.float32]
    for one, other in zip(ours, results(reference, below, fields, 32, ours[0].shape[1]), strict=True):
        torch.testing.assert_close(one.float(), other, atol=0.02 * float(other.abs().max()), rtol=0)


def test_what_a_program_cannot_hold_is_for_torch():
    assert not kernels.suits(*made(1, 3, 4, below=True), 4), "float32 is exact, unless one says otherwise"
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert kernels.suits(*made(1, 63, 4, below=True), 4)
        assert not kernels.suits(*made(1, 64, 4, below=True), 4)
        assert not kernels.suits(*made(1, 2, 300, below=False), 300)
        assert not kernels.suits(None, torch.zeros(1, 4, dtype=torch.float64), 2)
