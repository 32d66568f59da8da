"""What servers must know of a table and of a step, from what a trainer has."""

from __future__ import annotations

from typing import Any

from hybridrec.embedding.policies import LFU, LRU, TTL, MinCount, Probability
from hybridrec.embedding.table import Table
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from hybridrec.server.declaration import Declaration

EVICTIONS = {LRU: "lru", LFU: "lfu", TTL: "ttl"}


def declaration_of(table: Table, seed: int) -> Declaration:
    """The table as servers want it declared.

    >>> declaration_of(Table("user", dim=4, capacity=100, eviction="lfu"), seed=3).eviction
    'lfu'
    >>> declaration_of(Table("item", dim=4, rows=100), seed=3).rows
    100
    """
    eviction, admission = table.eviction, table.admission
    rows = None if table.dynamic else table.fixed_rows
    return Declaration(
        table.name,
        table.dim,
        table.capacity or table.fixed_rows,
        seed,
        str(table.dtype).removeprefix("torch."),
        init=table.init.kind,
        scale=table.init.size,
        eviction=EVICTIONS.get(type(eviction), "none"),
        ttl=eviction.steps if isinstance(eviction, TTL) else 0,
        probability=admission.p if isinstance(admission, Probability) else 1.0,
        min_count=admission.k if isinstance(admission, MinCount) else 0,
        rows=rows,
    )


def rule_to_json(rule: RowRule) -> dict[str, Any]:
    """A rule as servers want it.

    >>> rule_to_json(RowRule("adagrad", (StateColumn("sum", fill=0.5),)))
    {'kind': 'adagrad', 'state': [['sum', False, 0.5]]}
    """
    return {"kind": rule.kind, "state": [[each.name, each.per_row, each.fill] for each in rule.state]}


def rule_of(told: Any) -> RowRule | None:
    """The rule that a server tells."""
    return None if told is None else RowRule(told["kind"], tuple(StateColumn(*each) for each in told["state"]))


def step_numbers(step: RowStep) -> list[float]:
    """The numbers of a step in the order in which servers want them.

    >>> step_numbers(RowStep(rule=RowRule("sgd"), lr=0.5, step=7))[:2]
    [0.5, 0.0]
    """
    return [
        *(step.lr, step.momentum, step.weight_decay, step.eps, step.beta1, step.beta2),
        *(step.l1, step.l2, step.beta, step.weight_bound, step.clip_row_norm, step.grad_scale),
        float(step.step),
    ]
