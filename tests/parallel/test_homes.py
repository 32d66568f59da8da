"""Tables are given to ranks as a plan says; what cannot fit is refused before anything is allocated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import hybridrec as hr
from hybridrec.embedding import collection
from hybridrec.embedding.gpu import memory
from hybridrec.parallel.homes import homes_in, place_home
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.ranks import Ranks

CARD = torch.device("cuda", 0)


def test_shares_that_a_card_cannot_hold_are_refused_before_one_is_made(monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    monkeypatch.setattr(collection, "_one_of_many", lambda: True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2000)
    model = hr.EmbeddingCollection([hr.Table(name, 4, rows=100) for name in ("a", "b")], device="cuda")
    monkeypatch.setattr(model, "make_store", None)
    [home] = homes_in(model)
    plan = Plan(2, (Placement("a", "row", (0, 1)), Placement("b", "table", (1,))))
    with pytest.raises(ValueError, match=r"rows of 2 tables .* 3,000 bytes are needed on cuda:0, and 2,000 are free"):
        place_home(home, plan, Ranks(1, 2, 10.0), lambda *parts: None)  # pyright: ignore


def test_a_planned_cache_is_that_of_the_stores_and_counts_as_such(monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    monkeypatch.setattr(collection, "_one_of_many", lambda: True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3000)
    tables = [hr.Table("a", 4, rows=200), hr.Table("own", 4, rows=100, cache=5)]
    model = hr.EmbeddingCollection(tables, device="cuda")
    monkeypatch.setattr(model, "make_store", lambda table, share: SimpleNamespace(table=table, share=share))
    [home] = homes_in(model)
    plan = Plan(1, tuple(Placement(name, "table", (0,), cache=0.25) for name in ("a", "own")))
    made = {}

    def group(device, stores, trainable, pieces) -> SimpleNamespace:
        made.update({name: store.table.cached(store.table.fixed_rows) for name, store in stores.items()})
        return SimpleNamespace(stores=stores, lookup_fn=lambda features: None)

    place_home(home, plan, Ranks(0, 1), group)
    assert made == {"a": 50, "own": 5}
    whole = hr.EmbeddingCollection(tables[:1], device="cuda")
    with pytest.raises(ValueError, match="4,000 bytes are needed"):
        place_home(homes_in(whole)[0], Plan(1, (Placement("a", "table", (0,)),)), Ranks(0, 1), group)
