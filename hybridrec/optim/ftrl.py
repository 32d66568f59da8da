"""FTRL-Proximal on rows."""

from __future__ import annotations

from typing import Unpack

from hybridrec.optim.optimizer import RowOptimizer
from hybridrec.optim.options import RowOptions, Values
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.optim.tables import Model


class FTRL(RowOptimizer):
    """FTRL-Proximal (McMahan et al., 2013), which sets weights to exactly 0 where `l1` outweighs their gradients.

    It keeps two floats beside each weight, and forgets a row's initial values at its first update, as the method
    says. `lr` must stay above 0. `options` are those of all row optimizers: tables, overrides, weight_bound,
    clip_row_norm, nan.

    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100)])
    >>> FTRL(emb, lr=0.05, l1=0.01, tables=["item"]).tables
    ('item',)
    """

    def __init__(
        self,
        model: Model,
        lr: float = 0.05,
        *,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
        initial_accumulator_value: float = 0.1,
        weight_decay: float = 0.0,
        **options: Unpack[RowOptions],
    ) -> None:
        own = {"lr": lr, "l1": l1, "l2": l2, "beta": beta, "weight_decay": weight_decay}
        super().__init__(model, own | {"initial_accumulator_value": initial_accumulator_value}, options)

    def check(self, table: str, values: Values) -> None:
        super().check(table, values)
        _check_lr(values["lr"], table)

    def rule(self, values: Values) -> RowRule:
        return RowRule("ftrl", (StateColumn("z"), StateColumn("n", fill=values["initial_accumulator_value"])))

    def numbers(self, values: Values, step: int, rule: RowRule) -> dict[str, float]:
        _check_lr(values["lr"], values["name"])
        return {name: float(values[name]) for name in ("lr", "l1", "l2", "beta", "weight_decay")}


def _check_lr(lr: float, table: str) -> None:
    if not lr > 0:
        raise ValueError(f"table {table!r}: lr is {lr}; FTRL divides by it, so keep it above 0, in schedules too")
