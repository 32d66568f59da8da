from __future__ import annotations

import pytest
import torch

from tests.models.clicks import dataset, losses, made

BATCHES = list(dataset())


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_the_logit_is_that_of_cross_and_deep(rank, structure):
    model = made("dcnv2", dataset().schema, rank=rank, structure=structure, crosses=3)
    losses(model, BATCHES)
    model.eval()
    batch, net = BATCHES[0], model.net
    x0 = x = torch.cat([model.embeddings(batch.ids).flat, net.norm(batch.dense)], 1)
    for layer in net.cross:
        x = x0 * layer.weight(x) + x
    top = net.deep(x) if structure == "stacked" else torch.cat([x, net.deep(x0)], 1)
    assert len(net.cross) == 3
    assert torch.allclose(model(batch), net.head(top)[:, 0], atol=1e-5)


def test_an_unknown_structure_lists_the_known_ones():
    with pytest.raises(ValueError, match="'serial'; valid are parallel, stacked"):
        made("dcnv2", dataset().schema, structure="serial")
