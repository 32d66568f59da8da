"""Rows of half types: updated in float32 and rounded by chance, with the draws of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridrec.data import xxh64
from hybridrec.embedding import EmbeddingCollection, Normal, Table, Uniform
from hybridrec.ops.philox import reference as philox
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from tests.embedding.batches import COMBINERS, factors, loss_of, random_block
from tests.embedding.oracle import PlainCollection

HALVES = [torch.float16, torch.bfloat16]
EXTREMES = [0, -1, 2**63 - 1, -(2**63), 2**32, 7]


def rounded(name: str, seed: int, ids: list[int], rows: Tensor, step: int, dtype: torch.dtype) -> Tensor:
    kind: Any = str(dtype).removeprefix("torch.")
    bits = philox.round_stochastic(xxh64(name, seed), np.array(ids), rows.numpy(), step, kind)
    return torch.from_numpy(bits).view(dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [1, 7, 8, 16, 33, 128, 129, 300])
def test_exact_updates_are_rounded_as_by_the_reference_bit_for_bit(dtype, dim):
    """Numbers of few bits, so that float32 is exact, and a step far below the distance of two half numbers."""
    emb = EmbeddingCollection([Table("t", dim, rows=7, dtype=dtype, init=Uniform(1.0))], seed=5)
    rows = SGD(emb, lr=2.0**-12)
    for step in range(1, 5):
        before, ids, grad = emb["t"].weight.clone(), torch.tensor([1, 3, 5, 3]), factors((4, dim), step)
        (emb({"t": ids}).flat * grad).sum().backward()
        rows.step()
        sums = torch.zeros(7, dim).index_add(0, ids, grad)
        expected = rounded("t", 5, list(range(7)), before.float() - 2.0**-12 * sums, step, dtype)
        assert torch.equal(emb["t"].weight.view(torch.int16), expected.view(torch.int16))
        assert torch.equal(emb["t"].weight[[0, 2, 4, 6]], before[[0, 2, 4, 6]])


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_of_a_dynamic_table_are_rounded_by_their_ids(dtype):
    emb = EmbeddingCollection([Table("t", 19, capacity=10, dtype=dtype, init=Uniform(1.0))])
    rows, ids = SGD(emb, lr=2.0**-12), torch.tensor(EXTREMES)
    for step in (1, 2):
        grad = factors((len(ids), 19), step)
        out = emb({"t": ids}).flat
        (out * grad).sum().backward()
        rows.step()
        expected = rounded("t", 0, EXTREMES, out.detach() - 2.0**-12 * grad, step, dtype)
        assert torch.equal(emb.lookup("t", ids).view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [3, 16, 65])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGD, {"momentum": 0.5, "weight_decay": 0.25}),
        (SGD, {"momentum": 0.5, "nesterov": True, "clip_row_norm": 0.5}),
        (Adagrad, {"eps": 0.05, "weight_bound": 0.5}),
        (RowWiseAdagrad, {"eps": 0.05, "weight_decay": 0.25}),
        (Adam, {"betas": (0.75, 0.9), "eps": 0.05}),
        (FTRL, {"l1": 0.125, "l2": 0.25}),
    ],
)
def test_every_update_lands_on_a_neighbour_of_the_exact_row(dtype, dim, kind, options):
    names = {combiner: combiner for combiner in COMBINERS if combiner != "max"}
    table = Table("t", dim, rows=20, features=list(names), combiner=names, dtype=dtype, init=Normal(0.5))
    emb = EmbeddingCollection([table])
    rows, plain = kind(emb, lr=0.25, **options), PlainCollection(emb)
    for seed in range(3):
        block = random_block(dict.fromkeys(names, 20), 8, seed)
        out, expected = emb(block), plain(block)
        assert out.flat.dtype == torch.float32
        torch.testing.assert_close(out.flat.double(), expected.flat, rtol=1e-5, atol=2e-6)
        for one in (out, expected):
            loss_of(one, seed).backward()
        plain.step(rows)
        rows.step()
        exact = plain.weights["t"].detach()
        unit = torch.finfo(dtype).eps * 2.0 ** exact.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor()
        assert ((emb["t"].weight.double() - exact).abs() <= unit * 1.001 + 1e-6).all()
        for found, wanted in zip(emb["t"].export().state.values(), plain.states["t"], strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=2e-6)
        plain.adopt()


@pytest.mark.parametrize("dtype", HALVES)
def test_steps_too_small_for_the_type_are_kept_on_average(dtype):
    """Rounding to nearest would keep none of them."""
    emb = EmbeddingCollection([Table("t", 1000, rows=1, dtype=dtype, init=Uniform(0.0))])
    emb["t"].weight.fill_(1.0)
    small = torch.finfo(dtype).eps / 16
    rows = SGD(emb, lr=small)
    for _ in range(64):
        emb({"t": torch.tensor([0])}).flat.sum().backward()
        rows.step()
    assert abs(float(emb["t"].weight.double().mean()) - (1 - 64 * small)) < 64 * small / 10


@pytest.mark.parametrize("dtype", HALVES)
def test_a_step_that_changes_nothing_rounds_nothing(dtype):
    emb = EmbeddingCollection([Table("t", 40, rows=5, dtype=dtype)])
    rows, before = SGD(emb, lr=0.5), emb["t"].weight.clone()
    (emb({"t": torch.arange(5)}).flat * 0).sum().backward()
    rows.step()
    assert torch.equal(emb["t"].weight, before)
