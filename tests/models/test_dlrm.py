from __future__ import annotations

from itertools import combinations

import pytest
import torch

from tests.models.clicks import dataset, losses, made

BATCHES = list(dataset())


def test_the_logit_is_the_top_over_the_dense_vector_and_all_dots():
    model = made("dlrm", dataset().schema)
    losses(model, BATCHES)
    model.eval()
    batch, net = BATCHES[0], model.net
    below = net.bottom(net.norm(batch.dense))
    out = model.embeddings(batch.ids)
    for row in range(10):
        vectors = [below[row], *(out[name][row] for name in model.embeddings.features)]
        dots = torch.stack([a @ b for a, b in combinations(vectors, 2)])
        assert torch.allclose(net.top(torch.cat([below[row], dots]))[0], model(batch)[row], atol=1e-5)


def test_one_feature_has_no_pairs():
    schema = dataset().schema.select(["item"])
    with pytest.raises(ValueError, match="the schema has one; add another"):
        made("dlrm", schema, share=None)
