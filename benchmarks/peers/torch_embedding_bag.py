"""Peer: torch.nn.EmbeddingBag, one module per table, sparse gradients, torch.optim.Adagrad."""

from __future__ import annotations

import torch
from embedding_step import EPS, LR, Bags, Contender, Task, serve
from torch import Tensor


def build(task: Task) -> Contender:
    assert task.variant == "adagrad"
    shape, dim = task.shape, task.setting.dim
    bags = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(shape.rows, dim, mode="sum", sparse=True) for _ in range(shape.tables)
    )
    optimizer = torch.optim.Adagrad(bags.parameters(), lr=LR, eps=EPS)

    def forward(batch: Bags) -> Tensor:
        return torch.cat([bag(*inputs) for bag, inputs in zip(bags, batch.per_table, strict=True)], 1)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Contender(bags, forward, update)


if __name__ == "__main__":
    serve(build, {})
