"""What a row optimizer that is yet to be made will keep beside rows, known before rows have memory."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from torch import nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.embedding.owner import RowOwner
from hybridrec.optim import RowOptimizer
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.train.optimizers import RowChoice, row_optimizer

MOST = RowRule("adam", (StateColumn("exp_avg"), StateColumn("exp_avg_sq")))  # no rule keeps more beside a row
NONE = RowRule("sgd")

Rules = Mapping[tuple[str, str], RowRule]  # by the path of a collection and the name of its table


def collections_of(model: nn.Module) -> list[tuple[str, EmbeddingCollection]]:
    """The collections inside whose rows are no parameters, with their paths."""
    found = [(path, part) for path, part in model.named_modules() if isinstance(part, EmbeddingCollection)]
    return [(path, part) for path, part in found if part.fused]


def row_rules(model: nn.Module, rows: RowChoice) -> Rules:
    """The rule of each table, found by making the optimizer for the same tables with a single row each.

    Nothing is known of an optimizer that is there already, nor of a model with fused modules, whose rows are.
    """
    fused = any(isinstance(part, RowOwner) and not isinstance(part, EmbeddingCollection) for part in model.modules())
    if fused or isinstance(rows, RowOptimizer):
        return {}
    small = _small(model, {})
    made = row_optimizer(small, rows)
    if made is None:
        return {}
    rules = {id(group["params"][0]): made.rule(group) for group in made.param_groups}
    made.release()
    return {
        (path, table): rules.get(id(handle), NONE)
        for path, part in collections_of(small)
        for table, handle in part.group.handles.items()
    }


def _small(module: nn.Module, seen: dict[int, nn.Module]) -> nn.Module:
    """The module with a single row in place of each table, on the CPU; all else is shared."""
    if id(module) not in seen:
        if isinstance(module, EmbeddingCollection) and module.fused:
            made: nn.Module = EmbeddingCollection([_single(table) for table in module.tables.values()])
        else:
            made = copy(module)
            made._modules = {n: None if part is None else _small(part, seen) for n, part in module._modules.items()}
        seen[id(module)] = made
    return seen[id(module)]


def _single(table: Table) -> Table:
    return Table(table.name, table.dim, rows=1, features=table.features, trainable=table.trainable)
