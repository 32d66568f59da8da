"""No speed without the right answer: one step of ours beside torch.nn.EmbeddingBag on the same weights.

Outputs and all rows of every table are compared after one step. Adagrad's oracle is torch.optim.Adagrad, row-wise
Adagrad's its formula. The accumulator does not start at zero: there, the first step is lr times
the sign of the gradient, which rounding decides where a sum nearly cancels.
"""

from __future__ import annotations

from typing import Any

import embedding_ours as ours
import torch
from embedding_step import EPS, LR, Bags, Task, batches, gradient, received, say
from torch import Tensor

ACCUMULATOR = 1e-4
RTOL, ATOL = 1e-5, 2e-6


def check(task: Task) -> float:
    """The largest difference found; ValueError where one is beyond the tolerance."""
    bags, grad = batches(task)[0], gradient(task)
    emb = ours.collection(task)
    optimizer = ours.optimizer(task, emb, initial_accumulator_value=ACCUMULATOR)
    block = ours.block(bags, task.setting.hot, task.shape.batch)
    if task.capacity is not None:  # a zero gradient inserts the ids and changes nothing
        emb(block).flat.backward(torch.zeros_like(grad))
        optimizer.step()
    before = [table(emb, i, task) for i in range(task.shape.tables)]
    out = emb(block).flat
    out.backward(grad)
    optimizer.step()
    worst = 0.0
    for i, rows in enumerate(before):
        columns = slice(i * task.setting.dim, (i + 1) * task.setting.dim)
        want_out, want_rows = oracle(task.variant, rows, bags, i, grad[:, columns])
        worst = max(worst, compare(f"output of t{i}", out[:, columns].detach(), want_out))
        worst = max(worst, compare(f"rows of t{i}", table(emb, i, task), want_rows))
    return worst


def table(emb: Any, i: int, task: Task) -> Tensor:
    """All rows of a table, as they are now. [rows, dim]"""
    return emb.lookup(f"t{i}", torch.arange(task.shape.rows)).clone()


def oracle(variant: str, rows: Tensor, bags: Bags, i: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Output and rows after one step, by torch.nn."""
    bag = torch.nn.EmbeddingBag.from_pretrained(rows.clone(), freeze=False, mode="sum", sparse=True)
    out = bag(*bags.per_table[i])
    out.backward(grad)
    if variant == "adagrad":
        torch.optim.Adagrad([bag.weight], lr=LR, eps=EPS, initial_accumulator_value=ACCUMULATOR).step()
    else:
        rowwise_adagrad(bag.weight)
    return out.detach(), bag.weight.detach()


def rowwise_adagrad(weight: Tensor) -> None:
    assert weight.grad is not None
    summed = weight.grad.coalesce()
    touched, grad = summed.indices()[0], summed.values()
    scale = (ACCUMULATOR + grad.square().mean(1, keepdim=True)).sqrt() + EPS
    with torch.no_grad():
        weight[touched] -= LR * grad / scale


def compare(what: str, got: Tensor, want: Tensor) -> float:
    worst = float((got - want).abs().max())
    if not torch.allclose(got, want, rtol=RTOL, atol=ATOL):
        raise ValueError(f"{what} differs from torch.nn by {worst:.3g}, more than {ATOL:g} + {RTOL:g} of the value")
    return worst


def main() -> None:
    task = received()
    try:
        say({"passed": True, "worst": check(task)})
    except ValueError as reason:
        say({"passed": False, "reason": str(reason)})


if __name__ == "__main__":
    main()
