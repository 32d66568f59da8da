"""Peer: TorchRec's FusedEmbeddingBagCollection, row-wise Adagrad; the KeyedJaggedTensor is built inside the clock."""

from __future__ import annotations

import torch
import torchrec
from embedding_step import EPS, LR, Bags, Contender, Task, serve
from torch import Tensor
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad


def build(task: Task) -> Contender:
    assert task.variant == "rowwise_adagrad"
    shape, keys = task.shape, [f"f{i}" for i in range(task.shape.tables)]
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t{i}", embedding_dim=task.setting.dim, num_embeddings=shape.rows, feature_names=[key]
        )
        for i, key in enumerate(keys)
    ]
    tables = FusedEmbeddingBagCollection(
        tables=configs,
        optimizer_type=RowWiseAdagrad,
        optimizer_kwargs={"lr": LR, "eps": EPS},
        device=torch.device("cpu"),
    )

    def forward(batch: Bags) -> Tensor:
        jagged = torchrec.KeyedJaggedTensor(keys=keys, values=batch.values, lengths=batch.lengths)
        return tables(jagged).values()

    return Contender(tables, forward)


if __name__ == "__main__":
    serve(build, {"torchrec": torchrec.__version__})
