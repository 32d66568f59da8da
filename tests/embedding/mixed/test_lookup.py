"""Lookups of tables on a card and on the host together: what may be asked of their outputs, and what is refused."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.types import IdBlock
from tests.embedding.mixed.beside import Pair, beside
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

TABLES = [
    hr.Table("c", dim=2, rows=8, features=["c", "c_seq"], combiner={"c": "sum", "c_seq": "none"}),
    hr.Table("h", dim=3, rows=8, features=["h_seq", "h"], combiner={"h_seq": "none", "h": "mean"}, where="host"),
]
on_card = pytest.mark.skipif(DEVICE.type != "cuda", reason="streams are of a card")


def block(batch: int = 4, seed: int = 0) -> IdBlock:
    draw = torch.Generator().manual_seed(seed)
    names = [name for table in TABLES for name in table.features]
    return IdBlock.from_ragged({name: torch.randint(8, (batch, 2), generator=draw) for name in names})


def adam(model: object) -> hr.optim.RowOptimizer:
    return hr.optim.Adam(model, lr=0.1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("part", ["flat", "c_seq", "h_seq"])
def test_an_output_without_a_gradient_touches_no_row(part):
    pair = Pair(TABLES, adam)
    for emb, rows in zip((pair.cpu, pair.mixed), pair.rows, strict=True):
        out = emb(block().to(emb.device))
        (out.flat if part == "flat" else out[part].values).square().sum().backward()  # pyright: ignore
        assert emb.group.waiting() == ({"c", "h"} if part == "flat" else {part[0]})
        rows.step()
    pair.agree()


def test_lookups_and_backward_calls_before_a_step_add_up():
    pair = Pair(TABLES, adam)
    for emb in (pair.cpu, pair.mixed):
        first, second = (emb(block(seed=seed).to(emb.device)) for seed in (1, 2))
        loss = first.flat.square().sum() + second["h_seq"].values.sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert pair.mixed.group.pending("h") == 4
    pair.step()
    pair.agree()


def test_outputs_may_be_changed_in_place():
    pair = Pair(TABLES, adam)
    for emb in (pair.cpu, pair.mixed):
        flat = emb(block().to(emb.device)).flat
        flat.mul_(2).square().sum().backward()
    pair.step()
    pair.agree()


def test_without_gradients_there_is_nothing_to_queue():
    pair = Pair(TABLES, adam)
    with torch.no_grad():
        assert not any(part.requires_grad for part in pair.outputs(block())[1])
    with torch.inference_mode():
        pair.outputs(block(seed=3))
    frozen = Pair([hr.Table(t.name, t.dim, rows=8, where=t.where, trainable=t.on_host) for t in TABLES], adam)
    frozen.backward(IdBlock.from_ragged({"c": torch.tensor([1]), "h": torch.tensor([2])}))
    assert frozen.mixed.group.waiting() == {"h"}
    frozen.step()
    frozen.agree()


def test_a_batch_without_rows_does_nothing():
    pair = Pair(TABLES, adam)
    pair.backward(block(batch=0))
    for rows in pair.rows:
        rows.step()
    pair.agree(atol=0.0)


def test_an_id_outside_a_table_on_the_host_is_an_error_at_once():
    emb = beside(TABLES)
    rows = adam(emb)
    ids = {name: torch.tensor([1, 2], device=DEVICE) for name in emb.features}
    with pytest.raises(ValueError, match="id 99 at position 1 of feature 'h' is outside table 'h', 0 … 7"):
        emb(ids | {"h": torch.tensor([1, 99], device=DEVICE)})
    emb(ids).flat.sum().backward()
    rows.step()


def test_a_feature_that_is_absent_is_named():
    with pytest.raises(KeyError, match="no feature 'h' among the ids"):
        beside(TABLES)({name: torch.tensor([1]) for name in ("c", "c_seq", "h_seq")})


@on_card
def test_ids_may_be_sent_for_and_never_looked_up():
    emb = beside(TABLES)
    given = block().to(DEVICE)
    emb.fetch(given)
    assert len(emb._lookup._fetched) == 1
    emb.fetch(given.select(["c"]))  # of a batch that this collection has nothing to do with
    del given
    assert len(emb._lookup._fetched) == 0


@on_card
def test_ids_that_changed_after_they_were_sent_for_are_read_anew():
    pair = Pair(TABLES, adam)
    for emb in (pair.cpu, pair.mixed):
        given = block().to(emb.device).map_tensors(torch.clone)
        emb.fetch(given)
        given.values.copy_(block(seed=9).values)
        assert torch.equal(emb(given).flat, emb(block(seed=9).to(emb.device)).flat)


@on_card
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capture_with_tables_on_the_host_is_refused():
    emb, given = beside(TABLES).eval(), block().to(DEVICE)
    emb(given)
    with pytest.raises(RuntimeError, match="tables on the host cannot be part of a CUDA graph"):
        emb.expect(given)
    with pytest.raises(RuntimeError, match="tables on the host cannot be part of a CUDA graph"):  # noqa: SIM117
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            emb(given)
