from __future__ import annotations

import pytest
import torch

import hybridrec as hr
from hybridrec.models import DIN
from tests.models.clicks import dataset, losses, made

BATCHES = list(dataset())


def test_the_logit_is_deep_over_vectors_dense_and_the_interest_of_each_row():
    model = made("din", dataset().schema)
    losses(model, BATCHES, epochs=2)
    model.eval()
    batch, net = BATCHES[0], model.net
    out, numbers = model.embeddings(batch.ids), net.norm(batch.dense)
    (pool,) = net.attention
    for row in range(15):
        query, interest = out["item"][row], torch.zeros(4)
        for key in out["seen"][row]:  # the weights of ids are in the keys
            interest += pool.score(torch.cat([query, key, query - key, query * key])) * key
        logit = net.deep(torch.cat([out.flat[row], numbers[row], interest]))
        assert torch.allclose(logit[0], model(batch)[row], atol=1e-5)


def test_histories_use_the_table_of_what_they_are_compared_with():
    model = made("din", dataset().schema)
    assert model.embeddings.tables["item"].combiners == {"item": "sum", "seen": "none"}
    assert "seen" not in model.embeddings.tables


def test_the_order_of_a_history_does_not_matter_but_its_items_do():
    model = made("din", dataset().schema.select(["item", "seen"]))
    model.train()

    def logit(*seen: int) -> torch.Tensor:
        ids = hr.IdBlock.from_lists({"item": [1], "seen": [list(seen)]})
        return model(hr.Batch(ids, torch.empty(1, 0)))

    assert torch.allclose(logit(1, 2, 3), logit(3, 1, 2), atol=1e-6)
    assert not torch.allclose(logit(1, 2, 3), logit(1, 2, 4), atol=1e-6)


@pytest.mark.parametrize("history", [{}, {"user": "item"}, {"movie": "item"}])
def test_a_history_must_be_a_list_of_ids(history):
    with pytest.raises(ValueError, match=r"seen$"):
        DIN(dataset().schema, history=history)
