"""When steps are captured; what replays give is in test_on_a_gpu.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from hybridrec.parallel.cost import Wire
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.shard import place
from hybridrec.train.graphs import StepGraph, StepGraphs, graphs_for
from hybridrec.train.losses import LOSSES, make_loss
from hybridrec.train.step import Learner
from tests.train.clicks import dataset, model_of


class Elsewhere:
    """A group of tables on a device, as far as the choice looks at it."""

    def withdraw(self) -> None: ...


def on_device(monkeypatch: pytest.MonkeyPatch, learner: Learner) -> Learner:
    monkeypatch.setattr("hybridrec.train.graphs.groups_of", lambda model: [("", Elsewhere())])
    return learner


def test_rows_on_the_cpu_cannot_be_replayed_and_whoever_insists_is_told():
    for device, what in ((None, "layers"), (torch.device("cuda", 0), "rows")):
        learner = Learner(model_of(dataset()), LOSSES["bce"], device=device)
        assert graphs_for(learner, wanted=None) is None
        with pytest.raises(ValueError, match=f"graphs is true, but {what} of the model are on the CPU; make it with"):
            graphs_for(learner, wanted=True)


def test_a_sharded_model_has_no_graphs_and_whoever_insists_is_told():
    model = place(model_of(dataset()), None, Ranks(0, 1), Wire(), {})
    learner = Learner(model, LOSSES["bce"], device=torch.device("cuda", 0))
    assert graphs_for(learner, wanted=None) is None
    with pytest.raises(ValueError, match=r"graphs is true, but the model is sharded.*leave graphs out"):
        graphs_for(learner, wanted=True)


def test_models_and_losses_of_others_are_captured_only_if_wanted(monkeypatch):
    usual = on_device(monkeypatch, Learner(model_of(dataset()), LOSSES["bce"], device=torch.device("cuda", 0)))
    own_loss = replace(usual, loss=make_loss(lambda outputs, batch: outputs))
    own_model = replace(usual, model=nn.Linear(1, 1))
    assert [graphs_for(each, None) is not None for each in (usual, own_loss, own_model)] == [True, False, False]
    assert all(isinstance(graphs_for(each, True), StepGraphs) for each in (usual, own_loss, own_model))


def test_steps_that_cannot_be_repeated_run_as_they_are():
    ds = dataset()
    learner, graphs = Learner(model_of(ds), LOSSES["bce"]), StepGraphs()
    batch = next(iter(ds))
    learner.model.eval()
    assert graphs.find(learner, batch) is None
    graphs.refused = "the model looks at numbers on the host"
    learner.model.train()
    assert [graphs.find(learner, batch) for _ in range(10)] == [None] * 10
    assert graphs.replays == 0


class Apart:
    """A group of tables whose work is on a stream of its own."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def fix(self, block: object) -> None:
        self.done.append("fix")

    def rejoin(self) -> None:
        self.done.append("rejoin")


def test_a_capture_that_fails_has_its_streams_join_before_it_ends(monkeypatch):
    def without_room(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room for this tensor")

    ds, group, model = dataset(), Apart(), nn.Linear(1, 1)
    monkeypatch.setattr(model, "forward", lambda batch: torch.zeros(len(batch)))
    learner = Learner(model, make_loss(without_room), device=torch.device("cpu"))
    monkeypatch.setattr("hybridrec.train.graphs.groups_of", lambda model: [("", group)])
    monkeypatch.setattr("hybridrec.train.graphs.captured", lambda work: work())
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        StepGraph(learner, next(iter(ds)), None)
    assert group.done == ["fix", "rejoin"]
