"""Adam on rows."""

from __future__ import annotations

from math import sqrt
from typing import Unpack

from hybridrec.optim.optimizer import RowOptimizer
from hybridrec.optim.options import RowOptions, Values
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.optim.tables import Model


class Adam(RowOptimizer):
    """`torch.optim.SparseAdam`: rows that have a gradient move, and only their averages decay.

    Steps are counted per table, not per row. It keeps two floats beside each weight. `options` are those of all row
    optimizers: tables, overrides, weight_bound, clip_row_norm, nan.

    >>> import torch
    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100)])
    >>> rows = Adam(emb, lr=0.01)
    >>> schedule = torch.optim.lr_scheduler.StepLR(rows, step_size=100, gamma=0.5)
    """

    def __init__(
        self,
        model: Model,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Unpack[RowOptions],
    ) -> None:
        super().__init__(model, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, options)

    def rule(self, values: Values) -> RowRule:
        return RowRule("adam", (StateColumn("exp_avg"), StateColumn("exp_avg_sq")))

    def numbers(self, values: Values, step: int, rule: RowRule) -> dict[str, float]:
        beta1, beta2 = values["betas"]
        size = float(values["lr"]) * sqrt(1 - beta2**step) / (1 - beta1**step)
        return {
            "lr": size,
            "beta1": beta1,
            "beta2": beta2,
            "eps": values["eps"],
            "weight_decay": values["weight_decay"],
        }
