"""A fit that finds no memory on its card says what holds it, and what helps; without a card."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import hybridrec as hr
from hybridrec.train import Trainer, TrainOptions, full_card
from hybridrec.train.losses import LOSSES
from hybridrec.train.step import Learner
from tests.train.clicks import dataset, model_of

CARD = torch.device("cuda", 0)


class On(torch.Tensor):
    """A tensor that says it is on the card."""

    device = CARD  # pyright: ignore


def on_card(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).as_subclass(On)


def test_rows_state_and_the_rest_are_told_apart(monkeypatch):
    shared, sums = on_card(600, 4), on_card(600)  # of two tables with one cache
    item, user = (hr.Table(name, dim=4, rows=1000, cache=cache) for name, cache in (("item", 400), ("user", 200)))
    day, host = (
        hr.Table("day", dim=8, rows=10, combiner={"day": "mean"}),
        hr.Table("host", dim=8, rows=10, where="host"),
    )
    stores = {
        "item": SimpleNamespace(table=item, there=shared, states={"sum": sums}),
        "user": SimpleNamespace(table=user, there=shared, states={"sum": sums}),
        "day": SimpleNamespace(table=day, there=on_card(10, 8), states={}),
        "id": SimpleNamespace(table=hr.Table("id", dim=4, capacity=90), there=on_card(50, 4), states={}),
        "host": SimpleNamespace(table=host, there=torch.zeros(10, 8), states={"sum": torch.zeros(10)}),
        "far": SimpleNamespace(table=host),
    }
    monkeypatch.setattr(full_card, "groups_of", lambda model: [("", SimpleNamespace(stores=stores))])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 50_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 42_320)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    learner = Learner(torch.nn.Linear(1, 1), LOSSES["bce"], device=CARD)
    said = full_card.full_card(learner, torch.OutOfMemoryError("no room for 1.18 GiB"))
    for part in (
        "cuda:0 has no memory left for a batch. Of its 50,000 bytes, rows of tables have 10,720, ",
        "their optimizer state 2,400, and 30,000 are for batches, vectors with their gradients, layers and CUDA graphs",
        "smaller batches; a smaller cache= for the largest tables (item has 400 rows there, user has 200 rows there, "
        "day has 10 rows there); a smaller capacity= for id, which may have 90 rows; rows of half the size with "
        "dtype=torch.bfloat16; TrainOptions(bf16=True), on the command line train.bf16=true, which halves",
        "torch says: no room for 1.18 GiB",
    ):
        assert part in said


@pytest.mark.parametrize(("bf16", "capability"), [(True, (9, 0)), (False, (7, 5))])
def test_only_what_can_be_done_is_said_to_help(bf16, capability, monkeypatch):
    hashed = hr.Table("hashed", dim=4, hashes=hr.embedding.MultiHash(2, 50), dtype=torch.bfloat16)
    stores = {"hashed": SimpleNamespace(table=hashed, there=on_card(50, 4), states={})}
    monkeypatch.setattr(full_card, "groups_of", lambda model: [("", SimpleNamespace(stores=stores))])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 50_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 42_320)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    learner = Learner(torch.nn.Linear(1, 1), LOSSES["bce"], device=CARD, bf16=bf16)
    said = full_card.full_card(learner, torch.OutOfMemoryError("no room for 1.18 GiB"))
    assert said.endswith("What helps: smaller batches. torch says: no room for 1.18 GiB")


def test_a_fit_without_memory_says_at_which_step_and_how_to_go_on(monkeypatch, tmp_path):
    ds, steps = dataset(500).batch(50), iter(range(9))

    def without_room(*given):
        if next(steps) == 3:
            raise torch.OutOfMemoryError("no room for 1.18 GiB")
        return hr.train.train_step(*given)

    monkeypatch.setattr("hybridrec.train.fit.train_step", without_room)
    trainer = Trainer(model_of(ds), out=tmp_path / "run", options=TrainOptions(progress="none", save_every=2))
    with pytest.raises(torch.OutOfMemoryError, match=r"^step 4: no room for 1\.18 GiB\. .*is saved; go on with fit"):
        trainer.fit(ds)
