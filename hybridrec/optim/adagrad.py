"""Adagrad on rows."""

from __future__ import annotations

from typing import Unpack

from hybridrec.optim.optimizer import RowOptimizer
from hybridrec.optim.options import RowOptions, Values
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.optim.tables import Model


class Adagrad(RowOptimizer):
    """`torch.optim.Adagrad` on the rows that have a gradient. It keeps a float beside each weight.

    `options` are those of all row optimizers: tables, overrides, weight_bound, clip_row_norm, nan.

    >>> import torch
    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100), hr.Table("user", dim=4, capacity=1000)])
    >>> rows = Adagrad(emb, lr=0.05, overrides={"user": {"lr": 0.1}})
    >>> emb({"item": torch.tensor([3, 3]), "user": torch.tensor([-7, 8])}).flat.sum().backward()
    >>> rows.step()
    >>> [(group["name"], group["lr"]) for group in rows.param_groups]
    [('item', 0.05), ('user', 0.1)]
    """

    def __init__(
        self,
        model: Model,
        lr: float = 0.01,
        *,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **options: Unpack[RowOptions],
    ) -> None:
        own = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        super().__init__(model, own | {"initial_accumulator_value": initial_accumulator_value}, options)

    def rule(self, values: Values) -> RowRule:
        return RowRule("adagrad", (StateColumn("sum", fill=values["initial_accumulator_value"]),))

    def numbers(self, values: Values, step: int, rule: RowRule) -> dict[str, float]:
        lr = float(values["lr"]) / (1 + (step - 1) * values["lr_decay"])
        return {"lr": lr, "weight_decay": values["weight_decay"], "eps": values["eps"]}
