"""RowOwner: a module with rows, and how to find such modules inside a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from hybridrec.embedding.group import TableGroup


class RowOwner:
    """A module whose rows are in a group of tables; None where they are ordinary parameters."""

    group: TableGroup | None


def groups_of(model: nn.Module) -> Iterator[tuple[str, TableGroup]]:
    """Every group of tables inside the model once, with the path of the first module that owns it."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, RowOwner) and module.group is not None and id(module.group) not in seen:
            seen.add(id(module.group))
            yield path, module.group
