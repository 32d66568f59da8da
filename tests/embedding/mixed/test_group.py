"""Tables on a card and on the host as one group: what row optimizers, checkpoints and copies see of it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.native_store import NativeStore
from tests.embedding.mixed.beside import Pair, beside
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

TABLES = [
    hr.Table("c1", dim=2, rows=8),
    hr.Table("h1", dim=2, rows=8, where="host"),
    hr.Table("c2", dim=2, rows=8, where="device"),
]
IDS = {"c1": [1, 2], "h1": [3, 3], "c2": [5, 6]}


def sgd(model: Any) -> hr.optim.RowOptimizer:
    return hr.optim.SGD(model, lr=1.0)


def look_up(emb: hr.EmbeddingCollection, **ids: list[int]) -> Tensor:
    return emb({name: torch.tensor(found, device=emb.device) for name, found in (IDS | ids).items()}).flat


def rows_of(emb: hr.EmbeddingCollection) -> dict[str, Tensor]:
    return {name: emb[name].export().rows.clone() for name in emb.tables}


def moved(emb: hr.EmbeddingCollection, before: dict[str, Tensor]) -> dict[str, list[int]]:
    """The rows of each table that are not what they were."""
    return {name: (rows != before[name]).any(1).nonzero().flatten().tolist() for name, rows in rows_of(emb).items()}


def test_every_table_is_where_it_says():
    emb = beside(TABLES)
    assert isinstance(emb.group, MixedGroup)
    assert [type(emb[name]) is DeviceStore for name in emb.tables] == [True, False, True]
    assert isinstance(emb["h1"], NativeStore)
    assert look_up(emb).device == DEVICE


def test_optimizers_list_the_tables_as_they_are_declared():
    rows = sgd(beside(TABLES))
    assert rows.tables == ("c1", "h1", "c2")
    assert [group["name"] for group in rows.param_groups] == ["c1", "h1", "c2"]


def test_two_optimizers_may_share_the_tables_and_each_takes_its_own():
    emb = beside(TABLES)
    first, second = hr.optim.SGD(emb, lr=1.0, tables=["h1", "c2"]), hr.optim.SGD(emb, lr=1.0, tables=["c1"])
    with pytest.raises(ValueError, match="table 'h1' is updated by another SGD"):
        hr.optim.SGD(emb, lr=1.0, tables=["h1"])
    before = rows_of(emb)
    look_up(emb).sum().backward()
    first.step()
    assert moved(emb, before) == {"c1": [], "h1": [3], "c2": [5, 6]}
    second.step()
    assert moved(emb, before) == {"c1": [1, 2], "h1": [3], "c2": [5, 6]}


def test_discarded_gradients_change_nothing():
    emb = beside(TABLES)
    rows, before = sgd(emb), rows_of(emb)
    look_up(emb).sum().backward()
    assert emb.group.waiting() == {"c1", "h1", "c2"}
    rows.zero_grad()
    assert [emb.group.pending(name) for name in emb.tables] == [0, 0, 0]
    rows.step()
    assert moved(emb, before) == {"c1": [], "h1": [], "c2": []}


def test_gradients_are_clipped_by_the_norm_of_both_places():
    pair = Pair(TABLES, sgd)
    for emb, rows in zip((pair.cpu, pair.mixed), pair.rows, strict=True):
        (3 * look_up(emb)).sum().backward()
        norm = hr.optim.clip_grad_norm_([], rows, 1.0)
        assert float(norm) == pytest.approx(3 * (2 + 2 + 8 + 4) ** 0.5)  # of h1 one row takes two gradients
        rows.step()
    pair.agree()


@pytest.mark.parametrize("column", [0, 2])
def test_a_row_whose_gradient_is_not_finite_is_left_out_wherever_it_lives(column):
    emb = beside(TABLES)
    rows, before, flat = sgd(emb), rows_of(emb), look_up(emb, h1=[3, 4])
    factor = torch.ones_like(flat)
    factor[0, column] = torch.inf
    (flat * factor).sum().backward()
    assert not emb.group.finite(["c1" if column == 0 else "h1"])
    assert rows.grad_norm() == float("inf")
    rows.step()
    assert moved(emb, before) == {"c1": [1, 2][column == 0 :], "h1": [3, 4][column == 2 :], "c2": [5, 6]}
    assert [emb[name].counters()["nan_rows"] for name in ("c1", "h1")] == [int(column == 0), int(column == 2)]


@pytest.mark.parametrize("column", [0, 2])
def test_where_nan_is_an_error_neither_place_changes(column):
    emb = beside(TABLES)
    rows, before, flat = hr.optim.SGD(emb, lr=1.0, nan="raise"), rows_of(emb), look_up(emb)
    factor = torch.ones_like(flat)
    factor[0, column] = torch.nan
    (flat * factor).sum().backward()
    with pytest.raises(FloatingPointError, match=f"table '{'c1' if column == 0 else 'h1'}' has gradients"):
        rows.step()
    assert moved(emb, before) == {"c1": [], "h1": [], "c2": []}


def test_copies_have_their_tables_in_the_same_places():
    emb = beside(TABLES)
    rows = hr.optim.Adagrad(emb, lr=0.1)
    look_up(emb).sum().backward()
    rows.step()
    before = rows_of(emb)
    for twin in (copy.deepcopy(emb).eval(), pickle.loads(pickle.dumps(emb)).eval()):
        assert isinstance(twin.group, MixedGroup)
        assert moved(twin, before) == {"c1": [], "h1": [], "c2": []}
        for name in twin.tables:
            twin[name].load(torch.tensor([1]), torch.ones(1, 2))
        assert look_up(twin, c1=[1, 2], h1=[1, 3])[0, :4].tolist() == [1.0] * 4
        assert moved(emb, before) == {"c1": [], "h1": [], "c2": []}


def test_a_state_dict_goes_from_any_place_to_any_other():
    mixed, turned = beside(TABLES), beside([replace(t, where=None if t.on_host else "host") for t in TABLES], seed=4)
    plain = hr.EmbeddingCollection(TABLES, seed=5)
    turned.load_state_dict(mixed.state_dict())
    plain.load_state_dict(turned.state_dict())
    assert torch.equal(look_up(plain), look_up(mixed).cpu())
    with torch.no_grad():
        plain["h1"].weight.mul_(2)  # pyright: ignore[reportAttributeAccessIssue]
    mixed.load_state_dict(plain.state_dict())
    assert torch.equal(look_up(plain), look_up(mixed).cpu())


def test_rows_are_read_by_id_from_both_places():
    emb, plain = beside(TABLES), hr.EmbeddingCollection(TABLES, seed=3)
    for name in emb.tables:
        for ids in ([[3], [5]], torch.tensor([3, 5], device=DEVICE)):
            found = emb.lookup(name, ids)
            assert found.device == DEVICE
            assert torch.equal(found.cpu(), plain.lookup(name, ids if isinstance(ids, list) else ids.cpu()))
