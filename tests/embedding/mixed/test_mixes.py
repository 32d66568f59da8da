"""Any mix of tables on a card and on the host is the same collection as one on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import MinCount, MultiHash
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import ids, lists, weighted
from tests.embedding.mixed.beside import Pair, close
from tests.gpu import DEVICE, INTERPRETED, needs_gpu

pytestmark = needs_gpu

OPTIMIZERS = {
    "sgd": lambda m: hr.optim.SGD(m, lr=0.1, weight_decay=0.01),
    "momentum": lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda m: hr.optim.Adagrad(m, lr=0.1, clip_row_norm=0.5),
    "rowwise_adagrad": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.1, weight_bound=0.2),
    "adam": lambda m: hr.optim.Adam(m, lr=0.1),
    "ftrl": lambda m: hr.optim.FTRL(m, lr=0.1, l1=0.01),
}
SIZES: dict[str, dict[str, Any]] = {
    "hash": {"rows": 9, "out_of_range": "hash"},
    "zero": {"rows": 7, "out_of_range": "zero"},
    "several": {"hashes": MultiHash(2, 5)},
    "dynamic": {"capacity": 200},
    "counted": {"capacity": 200, "admission": MinCount(2), "eviction": "lfu"},
}
POOLED = ("sum", "mean", "sqrtn", "max")
RANGE = 14  # of ids: some are outside of fixed tables


@st.composite
def mixes(draw: st.DrawFn) -> list[hr.Table]:
    """A few tables of all kinds, at least one of them on the host."""
    homes = draw(st.lists(st.sampled_from([None, "host"]), min_size=1, max_size=3))
    tables = []
    for number, where in enumerate(draw(st.permutations([*homes, "host"]))):
        size = draw(st.sampled_from([name for name in SIZES if where == "host" or "capacity" not in SIZES[name]]))
        features = [f"{number}{letter}" for letter in "ab"[: draw(st.integers(1, 2))]]
        known = [one for one in (*POOLED, "none") if size != "several" or one != "max"]
        combiner = {name: draw(st.sampled_from(known)) for name in features}
        options = {"features": features, "combiner": combiner, "where": where, **SIZES[size]}
        tables.append(hr.Table(str(number), draw(st.sampled_from([3, 8])), **options))
    return tables


def block_of(tables: list[hr.Table], shapes: list[int], batch: int, weights: bool) -> IdBlock:
    """Ids for all features: as many in each row, or lists of any length."""
    names = [name for table in tables for name in table.features]
    made = {
        name: lists(RANGE, 3, batch) if hot < 0 else ids(RANGE, batch, hot)
        for name, hot in zip(names, shapes, strict=False)
    }
    return weighted(made) if weights else IdBlock.from_ragged(made)


def check(tables: list[hr.Table], kind: str, shapes: list[int], weights: bool, seed: int) -> None:
    torch.manual_seed(seed)
    pair = Pair(tables, OPTIMIZERS[kind])
    pair.agree(atol=0.0)
    for batch in (4, 3):
        pair.backward(block_of(tables, shapes, batch, weights))
        pair.step()
        pair.agree()
    pair.cpu.eval(), pair.mixed.eval()
    pair.outputs(block_of(tables, shapes, 2, weights))


@given(
    tables=mixes(),
    kind=st.sampled_from(list(OPTIMIZERS)),
    shapes=st.lists(st.sampled_from([1, -1, 2, 0]), min_size=8, max_size=8),
    weights=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=2 if INTERPRETED else 12, deadline=None, derandomize=True)
def test_random_mixes_train_as_one_collection_on_the_cpu(tables, kind, shapes, weights, seed):
    check(tables, kind, shapes, weights, seed)


TABLES = [
    hr.Table("a", dim=4, rows=9, out_of_range="hash", features=["a", "a_seq"], combiner={"a": "sum", "a_seq": "none"}),
    hr.Table("h", dim=3, rows=9, out_of_range="zero", where="host", combiner="mean"),
    hr.Table("b", dim=8, rows=20, combiner="max"),
    hr.Table(*("d", 8), capacity=99, where="host", features=["d", "d_seq"], combiner={"d": "sqrtn", "d_seq": "none"}),
]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_all_optimizers_train_tables_in_both_places(kind):
    few = [hr.Table("h", dim=3, rows=14, where="host"), hr.Table("a", dim=4, rows=14), TABLES[3]]
    check(few, kind, [2, 1, 1, 1], weights=False, seed=0)


def test_all_kinds_of_features_come_in_their_order():
    check(TABLES, "adagrad", [1, 2, -1, 3, -1, -1], weights=True, seed=0)


def test_all_tables_may_be_on_the_host():
    tables = [replace(table, where="host") for table in TABLES]
    check(tables, "adam", [1, 2, -1, 3, -1, -1], weights=True, seed=1)


def test_a_card_may_have_sequences_alone():
    tables = [hr.Table("s", dim=4, rows=14, combiner="none"), replace(TABLES[1], where="host")]
    check(tables, "adam", [-1, 2], weights=False, seed=6)


def test_weights_take_gradients_from_both_places():
    torch.manual_seed(2)
    pair, found = Pair(TABLES, OPTIMIZERS["sgd"]), []
    block = block_of(TABLES, [1, 2, -1, 3, -1, -1], 5, weights=True)
    for emb in (pair.cpu, pair.mixed):
        there = block.to(emb.device)
        leaf = there.weights.detach().clone().requires_grad_()  # pyright: ignore
        out = emb(replace(there, weights=leaf))
        (out.flat.square().sum() + sum(part.values.square().sum() for part in out.sequences.values())).backward()
        found.append(leaf.grad)
    close([found[1]], [found[0]])
    pair.step()
    pair.agree()


def test_half_rows_are_rounded_alike_in_both_places():
    torch.manual_seed(3)
    tables = [replace(table, dtype=torch.bfloat16) for table in (TABLES[0], TABLES[3])]
    pair = Pair(tables, lambda m: hr.optim.SGD(m, lr=2.0**-6))
    for part in pair.outputs(block_of(tables, [1, 1, 1, 1], 4, weights=False)):
        sum(each.sum() for each in part).backward()  # pyright: ignore
    pair.step()
    pair.agree(atol=0.0)


def test_the_deterministic_mode_gives_the_same_rows():
    torch.use_deterministic_algorithms(True)
    try:
        check(TABLES[:2], "adagrad", [1, 2, -1], weights=False, seed=4)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a stream of its own is one of a card")
def test_ids_that_come_ahead_of_their_lookup_are_the_same_ids():
    torch.manual_seed(5)
    pair = Pair(TABLES, OPTIMIZERS["adagrad"])
    for batch in (300, 200, 300):
        block = block_of(TABLES, [1, 2, -1, 3, -1, -1], batch, weights=True)
        there, feed = block.to(DEVICE), torch.cuda.Stream()
        with torch.cuda.stream(feed):
            pair.mixed.fetch(there)
        outs = [emb(each) for emb, each in ((pair.cpu, block), (pair.mixed, there))]
        close([outs[1].flat], [outs[0].flat])
        for out in outs:
            out.flat.square().sum().backward()
        pair.step()
        pair.agree(1e-4)
