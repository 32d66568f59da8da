"""Row-wise Adagrad."""

from __future__ import annotations

from hybridrec.optim.adagrad import Adagrad
from hybridrec.optim.options import Values
from hybridrec.optim.rule import RowRule, StateColumn


class RowWiseAdagrad(Adagrad):
    """Adagrad with one number per row, the sum of its mean squared gradients, in place of one per weight.

    It takes the arguments of `Adagrad`, learns nearly as well, and keeps a fraction 1 / dim of the state.

    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=100)])
    >>> rows = RowWiseAdagrad(emb, lr=0.05)
    >>> rows.state_dict()["state"]["item"]["sum"].shape
    torch.Size([100])
    """

    def rule(self, values: Values) -> RowRule:
        return RowRule("rowwise_adagrad", (StateColumn("sum", True, values["initial_accumulator_value"]),))
