"""Gradient clipping over a whole model: parameters and rows together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hybridrec.optim.optimizer import RowOptimizer


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    rows: RowOptimizer | Iterable[RowOptimizer],
    max_norm: float,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients of parameters and rows down so that their common L2 norm is at most `max_norm`.

    It is `torch.nn.utils.clip_grad_norm_` as if the tables were parameters: the gradient of a row is summed over its
    occurrences first. Returns the norm before. With a `GradScaler`, unscale all optimizers before. The factor of the
    rows counts until the next `step()` or `zero_grad()`.

    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100)])
    >>> rows = hr.optim.SGD(emb, lr=0.1)
    >>> emb({"item": torch.tensor([3])}).flat.sum().backward()
    >>> clip_grad_norm_([], rows, max_norm=1.0)
    tensor(2.)
    """
    dense = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    optimizers = [rows] if isinstance(rows, RowOptimizer) else list(rows)
    norm = torch.nn.utils.get_total_norm([p.grad for p in dense if p.grad is not None])
    parts = [norm, *(norm.new_tensor(optimizer.grad_norm()) for optimizer in optimizers)]
    total = torch.linalg.vector_norm(torch.stack(parts))
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"the norm of the gradients is {float(total)}, so they cannot be clipped to {max_norm}")
    torch.nn.utils.clip_grads_with_norm_(dense, max_norm, total)
    factor = float((max_norm / (total + 1e-6)).clamp(max=1.0))
    for optimizer in optimizers:
        optimizer.scale_grads(factor)
    return total
