"""What a fit reads: batches that come ahead for a GPU, and their ids for other ranks."""

from __future__ import annotations

import pytest
import torch

from hybridrec.parallel.cost import Wire
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.shard import place
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.train.losses import LOSSES
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner
from hybridrec.train.training_data import TrainingData
from tests.train.clicks import dataset, model_of


@pytest.mark.parametrize("device", [None, torch.device("cpu")], ids=["as it is", "fed"])
def test_ids_of_a_sharded_model_go_ahead_by_one_batch_wherever_batches_are_placed(monkeypatch, device):
    told: list[torch.Tensor] = []
    monkeypatch.setattr(ShardedModel, "prepare", lambda self, batch, weight: told.append(batch.label))
    ds, other = dataset(rows=70), dataset(rows=70)
    model = place(model_of(ds), None, Ranks(0, 1), Wire(), {})
    data = TrainingData(ds, Learner(model, LOSSES["bce"], device=device))
    wanted = iter(other)
    for number, placed in enumerate(data.epoch(0)):
        assert isinstance(placed, Placed)
        assert placed.batch.label is told[number]
        assert str(placed.batch.label) == str(next(wanted).label)
        assert len(told) in (number + 1, number + 2)
        assert data.state() == other.state_dict()
    assert len(told) == len(other)
