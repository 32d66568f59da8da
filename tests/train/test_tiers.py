"""Hot rows that may be too few for the batches of a fit, without a card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hybridrec as hr
from hybridrec.embedding import collection
from hybridrec.train import tiers

CARD = torch.device("cuda", 0)


@pytest.mark.parametrize(("batch", "cautions"), [(3_000, 0), (20_000, 1)])
def test_a_fit_cautions_where_two_batches_may_need_more_than_the_hot_rows(batch, cautions, caplog, monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    item, day = hr.Table("item", dim=16, rows=20_000, cache=6_000), hr.Table("day", dim=16, rows=7)
    model = nn.Sequential(hr.EmbeddingCollection([item, day], device="cuda"))
    tiers.caution(model, batch)
    assert len(caplog.records) == cautions
    if cautions:
        said = "table 'item' has 6,000 hot rows, and two batches of 20,000 need up to 20,000"
        assert caplog.records[0].getMessage().startswith(said)
