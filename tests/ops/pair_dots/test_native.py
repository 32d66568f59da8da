"""Dot products of pairs by native code, against plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridrec.ops.pair_dots import native
from hybridrec.ops.pair_dots.op import kernels_for, pair_dots
from hybridrec.ops.pair_dots.reference import pair_dots as reference

# rows, fields, dim, whether a vector comes from below: fewer and more than a processor's lanes, and parts of blocks
SHAPES = [
    *((3, 26, 16, True), (2, 3, 8, True), (2, 2, 20, False), (1, 17, 5, True), (0, 3, 8, True), (2, 31, 4, False)),
    *((4, 1, 1, True), (3, 2, 1, False), (2, 40, 33, True), (300, 9, 17, True), (5, 16, 16, False), (2, 1, 16, False)),
]


def made(rows: int, fields: int, dim: int, below: bool) -> tuple[Tensor | None, Tensor]:
    draw = torch.Generator().manual_seed(rows + 10 * fields + dim)
    parts = [torch.randn(rows, width, generator=draw).requires_grad_() for width in (dim, fields * dim)]
    return parts[0] if below else None, parts[1]


def results(out: Tensor, *leaves: Tensor | None) -> list[Tensor]:
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], upstream)]


@pytest.mark.parametrize(("rows", "fields", "dim", "below"), SHAPES)
def test_pairs_are_multiplied_as_torch_does(rows, fields, dim, below):
    given = made(rows, fields, dim, below)
    ours = pair_dots(native, *given, dim)
    assert ours.shape[1] % 16 == 0
    expected = results(reference(*given, dim, ours.shape[1]), *given)
    for one, other in zip(results(ours, *given), expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "fields", "dim", "below"), SHAPES)
def test_every_number_of_the_result_is_written_and_none_beside_it(rows, fields, dim, below):
    first, vectors = made(rows, fields, dim, below)
    n = fields + below
    width = n * (n - 1) // 2 + dim * below + 3
    room = torch.full((rows + 2, width), torch.nan)
    native._vectors(first, vectors, dim).forward(rows, room[1:].data_ptr(), width)
    assert room[[0, -1]].isnan().all()
    assert not room[1:-1].isnan().any()
    grad, sums = torch.ones(rows, width), [torch.full((rows + 2, wide), torch.nan) for wide in (dim, fields * dim)]
    native._vectors(first, vectors, dim).backward(
        rows, grad.data_ptr(), width, sums[0][1:].data_ptr() if below else 0, sums[1][1:].data_ptr()
    )
    for part in sums if below else sums[1:]:
        assert part[[0, -1]].isnan().all()
        assert not part[1:-1].isnan().any()


def test_vectors_and_gradients_may_be_part_of_wider_rows():
    below, vectors = made(5, 3, 8, below=True)
    assert below is not None
    wide = [torch.cat([part, torch.full((5, 3), torch.nan)], 1)[:, : part.shape[1]] for part in (below, vectors)]
    found = pair_dots(native, wide[0], wide[1], 8)
    torch.testing.assert_close(found, pair_dots(native, below, vectors, 8), atol=0, rtol=0)
    grad = torch.randn(5, 40)
    given = below.detach(), vectors.detach(), 8
    torch.testing.assert_close(
        native.backward(grad[:, :16], *given), native.backward(grad[:, :16].contiguous(), *given)
    )


def test_each_row_is_what_it_is_alone_and_by_any_number_of_threads():
    below, vectors = made(700, 5, 6, below=True)
    assert below is not None
    together = pair_dots(native, below, vectors, 6)
    alone = [pair_dots(native, below[i : i + 1], vectors[i : i + 1], 6) for i in (0, 255, 256, 699)]
    assert torch.equal(together[[0, 255, 256, 699]], torch.cat(alone))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(pair_dots(native, below, vectors, 6), together)
    finally:
        torch.set_num_threads(threads)


def test_a_vector_that_is_not_finite_stays_among_its_own_pairs():
    _, vectors = made(2, 4, 3, below=False)
    with torch.no_grad():
        vectors[0, 3] = torch.nan
    found = pair_dots(native, None, vectors, 3)
    assert found[0, :6].isnan().tolist() == [True, False, False, True, True, False]
    assert not found[1].isnan().any()


def test_other_types_autocast_and_compilers_are_for_torch():
    below, vectors = made(2, 3, 4, below=True)
    assert kernels_for(below, vectors, 4) is native
    assert kernels_for(below, vectors.double(), 4) is None
    assert kernels_for(below, vectors.t().contiguous().t(), 4) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels_for(below, vectors, 4) is None
