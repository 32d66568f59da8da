"""Share: the part of a table that a store holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.id_hash import remainder
from hybridrec.embedding.table import Table
from hybridrec.server.placement import owners

OWNER_SEED = 1  # of the hash that deals out ids; the index of a dynamic table hashes with another

Row = TypeVar("Row", int, Tensor)


@dataclass(frozen=True)
class Share:
    """Every `count`-th row from row `index` on, and `width` columns from `column` on (0: all that are left).

    Rows of a dynamic table are dealt out by a hash of their id. A share that is `empty` has no rows at all. `saves` is
    false where another store holds the same rows and saves them. Of a table on so many `servers`, it is what every
    `count`-th of them from server `index` on holds.

    >>> Share(index=1, count=3).rows_of(10), Share(column=4, width=4).dim_of(16), Share().whole
    (3, 4, True)
    """

    index: int = 0
    count: int = 1
    column: int = 0
    width: int = 0
    empty: bool = False
    saves: bool = True
    servers: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is all of the table."""
        return self.count == 1 and self.column == 0 and self.width == 0 and not self.empty

    def rows_of(self, rows: int) -> int:
        """How many of so many rows it has, where the table is not dynamic.

        >>> [Share(index, 3).rows_of(10) for index in range(3)]
        [4, 3, 3]
        """
        return 0 if self.empty else max(0, -(-(rows - self.index) // self.count))

    def dim_of(self, dim: int) -> int:
        """How many columns it has of so many."""
        return self.width or dim - self.column

    def id_of(self, row: Row) -> Row:
        """The id of a row that is counted within the share, or of each of many; of a table that is not dynamic.

        >>> Share(1, 3).id_of(2), Share(1, 3).row_of(7)
        (7, 2)
        """
        return self.index + self.count * row

    def row_of(self, id: Row) -> Row:
        """The row within the share that has this id, or each of many."""
        return (id - self.index) // self.count

    def owns(self, table: Table, ids: Tensor) -> Tensor:
        """Which of these ids int64 [n] have their row here, bool [n].

        >>> Share(1, 2).owns(Table("item", 4, rows=10), torch.tensor([0, 1, 2, 3]))
        tensor([False,  True, False,  True])
        """
        if self.empty:
            return torch.zeros(len(ids), dtype=torch.bool)
        if self.servers:
            return torch.from_numpy(owners(ids.numpy(), self.servers) % self.count == self.index)
        return owners_of(table, ids, self.count) == self.index

    def to_json(self) -> dict[str, Any]:
        """What tells it apart, as JSON values."""
        made = {name: getattr(self, name) for name in ("index", "count", "column", "width")}
        return {**made, "servers": self.servers} if self.servers else made


def owners_of(table: Table, ids: Tensor, count: int) -> Tensor:
    """Which of `count` shares has the row of each id, int64 [n].

    >>> owners_of(Table("item", 4, rows=10), torch.tensor([0, 5, 7]), 2)
    tensor([0, 1, 1])
    """
    if not table.dynamic:
        return ids % count
    ids, bits = ids.contiguous(), torch.empty_like(ids)
    _native.hash_int64(ids.data_ptr(), len(ids), bits.data_ptr(), OWNER_SEED)
    return remainder(bits, count)
