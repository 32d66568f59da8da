from __future__ import annotations

import math

import pytest
import torch

import hybridrec as hr
from hybridrec.models.twotower import correct
from tests.models.clicks import dataset, losses, made

BATCHES = list(dataset())


def test_training_logits_are_all_pairs_less_the_log_of_the_share_of_the_item():
    model = made("twotower", dataset().schema, temperature=0.5)
    losses(model, BATCHES[:2])
    model.train()
    batch, count = BATCHES[2], {}
    for seen in BATCHES[:3]:
        for item in seen.ids["item"].values.tolist():
            count[item] = count.get(item, 0) + 1
    items = batch.ids["item"].values.tolist()
    logits = model(batch).detach()
    model.eval()  # the towers by the same running statistics, not counted again
    users, vectors = model.user_vectors(batch).detach(), model.item_vectors(batch).detach()
    for i in range(20):
        for j in range(20):
            if i != j and items[i] == items[j]:
                assert logits[i, j] == -math.inf
            else:
                wanted = float(users[i] @ vectors[j]) / 0.5 - math.log(count[items[j]] / 300)
                assert abs(float(logits[i, j]) - wanted) < 1e-3


def test_the_correction_by_hand():
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    got = correct(logits, torch.tensor([5, 6, 5]), torch.tensor([0.5, 0.25, 0.5]))
    two, four = math.log(2), math.log(4)
    wanted = [[1 + two, 2 + four, -math.inf], [4 + two, 5 + four, 6 + two], [-math.inf, 8 + four, 9 + two]]
    assert torch.allclose(got, torch.tensor(wanted))


def test_eval_logits_are_the_dot_of_both_vectors():
    model = made("twotower", dataset().schema)
    losses(model, BATCHES)
    model.eval()
    users, items = model.user_vectors(BATCHES[0]), model.item_vectors(BATCHES[0])
    assert torch.allclose(users.norm(dim=1), torch.ones(100))
    assert torch.allclose(model(BATCHES[0]), (users * items).sum(1) / model.temperature, atol=1e-5)


def test_a_tower_sees_its_own_features_only():
    model = made("twotower", dataset().schema, item=["item", "size", "age"])
    losses(model, BATCHES)
    model.eval()
    batch = BATCHES[0]
    older = hr.Batch(batch.ids, batch.dense + 10, dense_names=batch.dense_names)
    assert torch.equal(model.user_vectors(batch), model.user_vectors(older))
    assert not torch.allclose(model.item_vectors(batch), model.item_vectors(older))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ([], "its first name must be the id of the item"),
        (["seen"], "a single id: user, item, size"),
        (["movie"], "item names 'movie', which is no id or dense feature"),
        (["item", "user", "seen", "size", "age", "item_x_size"], "leave some for the user"),
    ],
)
def test_the_features_of_the_item_must_make_sense(item, message):
    with pytest.raises(ValueError, match=message):
        made("twotower", dataset().schema, item=item)


def test_a_single_name_is_refused_with_the_list_that_it_should_be():
    with pytest.raises(TypeError, match=r"item is the string 'item'; it must be a list, such as \['item'\]"):
        hr.models.TwoTower(dataset().schema, item="item")
