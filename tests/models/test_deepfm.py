from __future__ import annotations

from itertools import combinations

import torch

import hybridrec as hr
from tests.models.clicks import dataset, losses, made

BATCHES = list(dataset())


def test_the_logit_is_first_order_pairs_and_deep():
    model = made("deepfm", dataset().schema)
    losses(model, BATCHES, epochs=2)
    model.eval().requires_grad_(False)
    batch, net = BATCHES[0], model.net
    numbers = net.norm(batch.dense)
    with torch.no_grad():
        vectors, weights, logits = model.embeddings(batch.ids), model.wide(batch.ids), model(batch)
    for row in range(10):
        fields = [vectors[name][row] for name in model.embeddings.features]
        fields += [numbers[row, i] * net.fields.vectors[i] for i in range(numbers.shape[1])]
        first = sum(float(weights[name][row]) for name in model.wide.features)
        first += float(numbers[row] @ net.first.weight[:, 0] + net.first.bias)
        pairs = sum(float(a @ b) for a, b in combinations(fields, 2))
        deep = float(net.deep(torch.cat([*fields[:-1], numbers[row]])))
        assert abs(float(logits[row]) - (first + pairs + deep)) < 1e-4


def test_an_unknown_id_changes_nothing_but_its_own_part():
    model = made("deepfm", dataset().schema)
    losses(model, BATCHES)
    model.eval()
    batch = BATCHES[0]
    ids = {name: batch.ids[name] for name in batch.ids.names}
    unknown = {**ids, "user": torch.full((100,), 10**9)}
    empty = {**ids, "user": hr.Ragged(torch.empty(0, dtype=torch.int64), torch.zeros(101, dtype=torch.int64))}
    weights = {"seen": batch.ids.weights_of("seen")}
    logits = [model(hr.Batch(hr.IdBlock.from_ragged(each, weights=weights), batch.dense)) for each in (unknown, empty)]
    assert torch.equal(*logits)
