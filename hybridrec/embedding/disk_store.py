"""Rows of any ids in memory-mapped files: more than memory holds, and safe from the death of the process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.hash_store import HashStore, policy_of
from hybridrec.embedding.native_store import row_spec
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Slots, Store, _remade
from hybridrec.embedding.table import Table
from hybridrec.optim.rule import RowRule, StateColumn


class DiskStore(HashStore):
    """The rows of a dynamic table in the directory `table.path`; a share of one in a folder of its own there.

    It goes on with what the directory holds, or begins anew if it is empty. Whatever call has returned is there after
    the process is killed, at any moment; a call in the middle of which that happens is undone as a whole. Nothing is
    promised for when the machine loses its power. With `read_only` nothing in the directory changes.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp()
    >>> store = DiskStore(Table("user", dim=4, capacity=1000, path=folder))
    >>> store.release(store.prepare(torch.tensor([-5, 7, 7]), train=True))
    >>> del store
    >>> DiskStore(Table("user", dim=4, capacity=1000, path=folder), read_only=True).ids()
    tensor([-5,  7])
    """

    native: _native.DiskTable

    def __init__(self, table: Table, seed: int = 0, share: Share = WHOLE, *, read_only: bool = False) -> None:
        self.read_only = read_only
        super().__init__(table, seed, share)
        self.rule = _rule_of(self.native.rule)
        self._claimed = False  # whether somebody has said what rule it is for

    def _open(self, table: Table, seed: int, share: Share) -> _native.DiskTable:
        folder = folder_of(table, share)
        place = str(folder), table.name, seed, self.read_only
        return _native.DiskTable(row_spec(table, seed, share), *policy_of(table, share), *place)

    # -- a step -------------------------------------------------------------------------------------------

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        if train and self.read_only:
            raise ValueError(
                f"table {self.table.name!r} is open for reading, so it takes no training; open it to write"
            )
        return super().prepare(ids, step, train=train)

    # -- optimizer state ----------------------------------------------------------------------------------

    def attach(self, rule: RowRule) -> None:
        """Go on with the state that is there, if it is the first time since it was opened; else begin anew."""
        if not self._claimed and self.rule is not None and len(self.native):
            if self.rule != rule:
                raise ValueError(
                    f"table {self.table.name!r} in {self.table.path} keeps state for {self.rule}, not for {rule}; "
                    "train it with that optimizer, or drop its state with detach() first"
                )
        elif self._claimed or self.rule != rule:
            self.native.set_rule(_text_of(rule))
            super().attach(rule)
        self._claimed = True

    def detach(self) -> None:
        super().detach()
        self._claimed = True

    def _take(self, rule: RowRule | None) -> None:
        self._claimed = True
        super()._take(rule)

    # -- all rows -----------------------------------------------------------------------------------------

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.native.begin()
        try:
            super().load(ids, rows, state, touched, counts)
        except BaseException:
            self.native.abort()
            raise
        self.native.done()

    # -- cuts: moments to go back to ----------------------------------------------------------------------

    def cut(self, name: str) -> None:
        """Mark the present moment. From now on rows are kept as they are before they change."""
        self.native.cut(name)

    def roll_back(self, name: str) -> None:
        """Make everything what it was at a cut, which stays; cuts made after it are forgotten."""
        self.native.roll_back(name)

    def forget_cut(self, name: str) -> None:
        """Stop keeping what was before."""
        self.native.forget_cut(name)

    def cuts(self) -> list[str]:
        """The cuts there are, in the order they were made in."""
        return self.native.cuts()

    # -- copies: in memory, for there is one directory ----------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (HashStore, self.table, self.seed, self.snapshot(), self.share)

    def __deepcopy__(self, memo: dict) -> Store:
        return _remade(HashStore, self.table, self.seed, self.snapshot(), self.share)


def folder_of(table: Table, share: Share) -> Path:
    """Where a share of a table is; an error where the directory has it in other shares.

    >>> folder_of(Table("user", dim=4, capacity=10, path="rows"), Share(index=1, count=4)).as_posix()
    'rows/share-1-of-4'
    """
    assert table.path is not None, "a table in memory has no folder"
    base, name = Path(table.path), "" if share.whole else f"share-{share.index}-of-{share.count}"
    if share.column or share.width:
        name += f"-columns-{share.column}-{share.column + share.dim_of(table.dim) - 1}"
    there = {_deal(found.name) for found in base.glob("share-*")} if base.is_dir() else set()
    there |= {""} if (base / "table.header").exists() else set()
    if others := sorted(there - {_deal(name)}):
        raise ValueError(
            f"{os.fspath(base)} has table {table.name!r} {_dealt(others[0])}, and it is to be opened "
            f"{_dealt(_deal(name))}; open it as it was, save a checkpoint, and load that into a table with another path"
        )
    return base / name


def _deal(name: str) -> str:
    """What the folders of all shares have in common."""
    return name.partition("-of-")[2]


def _dealt(deal: str) -> str:
    return f"in shares of {deal}" if deal else "as a whole"


def _text_of(rule: RowRule) -> str:
    return json.dumps([rule.kind, [[c.name, c.per_row, c.fill] for c in rule.state]])


def _rule_of(text: str) -> RowRule | None:
    if not text:
        return None
    kind, columns = json.loads(text)
    return RowRule(kind, tuple(StateColumn(*column) for column in columns))
