"""SGD on rows."""

from __future__ import annotations

from typing import Unpack

from hybridrec.optim.optimizer import RowOptimizer
from hybridrec.optim.options import RowOptions, Values
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.optim.tables import Model


class SGD(RowOptimizer):
    """`torch.optim.SGD` on the rows that have a gradient; momentum and weight decay act when a row is touched.

    A row that rests keeps its momentum buffer and does not decay. `options` are those of all row optimizers: tables,
    overrides, weight_bound, clip_row_norm, nan.

    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100)])
    >>> SGD(emb, lr=0.1, momentum=0.9, clip_row_norm=1.0).tables
    ('item',)
    """

    def __init__(
        self,
        model: Model,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **options: Unpack[RowOptions],
    ) -> None:
        own = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(model, own, options)

    def check(self, table: str, values: Values) -> None:
        super().check(table, values)
        if values["nesterov"] and not values["momentum"]:
            raise ValueError(f"table {table!r}: nesterov needs a momentum above 0; give momentum=0.9")

    def rule(self, values: Values) -> RowRule:
        if not values["momentum"] and not values["nesterov"]:
            return RowRule("sgd")
        return RowRule("nesterov" if values["nesterov"] else "momentum", (StateColumn("momentum_buffer"),))

    def numbers(self, values: Values, step: int, rule: RowRule) -> dict[str, float]:
        now = self.rule(values)
        if now.state and now.kind != rule.kind:  # momentum that has gone to 0 is as good as none
            raise ValueError(
                f"table {values['name']!r} was made for {rule.kind}, and its values now ask for {now.kind}, which "
                "keeps other state; make a new SGD with them"
            )
        return {name: float(values[name]) for name in ("lr", "momentum", "weight_decay")}
