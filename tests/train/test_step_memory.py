"""What a step takes on a card beside tables: its parts against what they really allocate, without a card."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hybridrec as hr
from hybridrec.embedding import collection
from hybridrec.embedding.unfused import TableWeight
from hybridrec.train import late_loss
from hybridrec.train import step_memory as of
from hybridrec.train.fixed_batch import room
from hybridrec.train.late_loss import AHEAD
from hybridrec.train.step_memory import step_memory
from hybridrec.types import Batch, IdBlock, Ragged

CARD = torch.device("meta")  # which has the layers too
ROWS = 8
IDS = {"item": torch.tensor([[1, 2, 3]] * ROWS), "history": torch.tensor([[4, 5]] * ROWS), "day": torch.arange(ROWS)}


@pytest.fixture(autouse=True)
def card(monkeypatch) -> None:
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)


def model_of(*tables: hr.Table) -> nn.Module:
    return nn.ModuleList([hr.EmbeddingCollection(tables, device="cuda"), nn.Linear(20, 5, bias=False, device=CARD)])


def batch_of(**parts: torch.Tensor) -> Batch:
    return Batch(IdBlock.from_ragged(IDS), torch.zeros(ROWS, 4), **parts)


ITEM = hr.Table("item", dim=16, rows=99, features=["item"])
HISTORY = hr.Table("page", dim=4, rows=99, features=["history"])
DAY = hr.Table("day", dim=8, rows=7)


def test_the_parts_are_those_of_the_batch_the_features_and_the_weights():
    batch = batch_of()
    found = step_memory(model_of(ITEM, DAY), batch, CARD)
    ids = 8 * 6 * ROWS  # of all features: the batch comes as it is
    whole = ids + batch.ids.offsets.nbytes + 4 * 4 * ROWS
    assert found.batches == (of.BATCHES + AHEAD) * whole + of.SLOTS * ids
    assert found.vectors == of.VECTORS * 4 * ROWS * (16 + 8)
    assert found.grouping == of.LISTED * 4 * ROWS + int(of.CHUNKS * 4 * 16 * 3 * ROWS)
    assert found.layers == of.KEPT * 4 * ROWS * (20 + 5) + of.PER_WEIGHT * 4 * 20 * 5
    assert found.total == found.batches + found.vectors + found.grouping + found.layers


def test_ragged_features_count_as_many_ids_as_a_graph_has_room_for():
    rows, each = 1000, 3  # more than the least room that there is
    fixed = torch.ones(rows, each, dtype=torch.int64)
    found = {
        kind: step_memory(model_of(ITEM), Batch(IdBlock.from_ragged({"item": ids}), torch.zeros(rows, 4)), CARD)
        for kind, ids in (("fixed", fixed), ("ragged", Ragged(fixed.flatten(), torch.arange(0, each * rows + 1, each))))
    }
    longer = room(each * rows) / (each * rows)
    assert longer > 1
    assert found["ragged"].grouping == pytest.approx(longer * found["fixed"].grouping, rel=1e-3)
    ids, offsets, dense = 8 * room(each * rows), 8 * (rows + 1), 4 * 4 * rows
    assert found["ragged"].batches == (of.BATCHES + AHEAD) * (ids + offsets + dense) + of.SLOTS * ids


def test_of_large_batches_fewer_are_there_at_a_time(monkeypatch):
    usual = step_memory(model_of(ITEM, DAY), batch_of(), CARD).batches
    monkeypatch.setattr(late_loss, "LARGE", 1)
    ids, each = 8 * 6 * ROWS, (usual - of.SLOTS * 8 * 6 * ROWS) // (of.BATCHES + AHEAD)
    assert step_memory(model_of(ITEM, DAY), batch_of(), CARD).batches == (of.BATCHES + 1) * each + of.SLOTS * ids


def test_accumulated_batches_are_all_there_at_a_time():
    one, three = (step_memory(model_of(ITEM, DAY), batch_of(), CARD, accumulate=n) for n in (1, 3))
    assert (three.vectors, three.grouping, three.layers) == (3 * one.vectors, 3 * one.grouping, one.layers)
    assert one.batches < three.batches < 3 * one.batches


def test_a_sequence_has_a_vector_for_each_id_and_its_gradients_are_joined_with_the_others():
    pooled = step_memory(model_of(ITEM, DAY), batch_of(), CARD).vectors
    found = step_memory(model_of(ITEM, DAY, replace(HISTORY, combiner="none")), batch_of(), CARD).vectors
    more = 4 * 4 * 2 * ROWS
    assert found == pooled + of.VECTORS * more + (pooled // of.VECTORS + more)


def test_bags_that_are_divided_or_weighted_take_more_to_group():
    plain = step_memory(model_of(ITEM, DAY), batch_of(), CARD).grouping
    mean = step_memory(model_of(replace(ITEM, combiner="mean"), DAY), batch_of(), CARD).grouping
    batch = batch_of()
    weighted = replace(batch, ids=replace(batch.ids, weights=torch.ones(6 * ROWS)))
    assert mean == step_memory(model_of(ITEM, DAY), weighted, CARD).grouping == plain + of.SHARED * 4 * ROWS


def test_what_is_elsewhere_takes_nothing():
    both = step_memory(model_of(ITEM, replace(DAY, where="host")), batch_of(), CARD)
    alone = step_memory(model_of(ITEM), batch_of(), CARD)
    assert (both.grouping, both.vectors) == (alone.grouping, alone.vectors + of.VECTORS * 4 * ROWS * 8)
    there = step_memory(model_of(ITEM, DAY), batch_of(), torch.device("cpu"))
    assert (there.vectors, there.grouping, there.layers) == (0, 0, 0)


@pytest.mark.parametrize(
    "rows",
    [
        nn.Embedding(1000, 4, device=CARD),
        nn.EmbeddingBag(1000, 4, device=CARD),
        TableWeight(hr.Table("user", dim=4, rows=1000), seed=0).to(CARD),  # of a collection with fused=False
    ],
    ids=lambda part: type(part).__name__,
)
def test_rows_that_are_parameters_have_a_gradient_and_state_but_are_no_inputs_of_a_layer(rows: nn.Module):
    layer = nn.Linear(20, 5, bias=False, device=CARD)
    found, alone = (step_memory(nn.ModuleList(parts), batch_of(), CARD).layers for parts in ([rows, layer], [layer]))
    assert found == alone + of.PER_WEIGHT * 4 * 1000 * 4
    frozen = nn.ModuleList([rows.requires_grad_(False), layer])
    assert step_memory(frozen, batch_of(), CARD).layers == alone


@pytest.mark.parametrize("shares", [False, True])
def test_lists_of_ids_take_what_is_counted(shares: bool):
    pytest.importorskip("triton", reason="grouping is a kernel's")
    from hybridrec.ops.row_groups.triton import Sizes, group_rows

    sizes, ids = Sizes(), 100_000
    chunks = ids // (sizes.few + 1) + ids // sizes.chunk + 1
    layout = SimpleNamespace(sizes=sizes, most=ids, chunks=chunks, classes=[None], programs=0)  # nothing is launched
    scales = torch.ones(1) if shares else None
    made = group_rows(torch.zeros(0), layout, *(torch.zeros(0),) * 3, scales)
    lists = sum(part.nbytes for part in vars(made).values() if isinstance(part, torch.Tensor))
    meanwhile = ids * (4 + 2 + 4 + 2)  # rows, lanes, ranks, firsts
    assert 0.97 < (lists + meanwhile) / (ids * (of.LISTED + of.SHARED * shares)) <= 1


@pytest.mark.parametrize("ids", [100_000, 131_072, 131_073])
def test_what_is_noted_of_ids_of_dynamic_tables_is_what_is_counted(ids: int):
    pytest.importorskip("triton", reason="it is noted for kernels")
    from hybridrec.ops.hash_rows.triton_rows import _Noted

    there = torch.zeros(ids, 1, dtype=torch.int64)
    batch = Batch(IdBlock.from_ragged({"user": there}), torch.zeros(ids, 0))
    fixed, dynamic = hr.Table("user", dim=4, rows=9), hr.Table("user", dim=4, capacity=9)
    counted = [step_memory(model_of(table), batch, CARD).grouping for table in (fixed, dynamic)]
    made = _Noted(ids, ids // 512, ids // 128, 1, torch.device("cpu"))
    really = sum(part.nbytes for part in vars(made).values() if isinstance(part, torch.Tensor))
    assert counted[1] - counted[0] == pytest.approx(really, rel=0.01)


def test_sums_take_what_is_counted():
    pytest.importorskip("triton", reason="layouts name what kernels know")
    from hybridrec.ops.row_groups.triton import Sizes

    sizes = Sizes()
    assert 1 / (sizes.few + 1) + 1 / sizes.chunk == of.CHUNKS
