"""Declaration: what a table on servers is, as plain values that need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

import numpy as np

from hybridrec import _native
from hybridrec.server.protocol import Refusal, malformed

CHOICES = {
    "dtype": ("float32", "float16", "bfloat16"),
    "init": ("uniform", "normal", "constant"),
    "eviction": ("none", "lru", "lfu", "ttl"),
}
BITS = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}  # of a number in memory
KINDS = ("sgd", "momentum", "nesterov", "adagrad", "rowwise_adagrad", "adam", "ftrl")
MOST = 2**63 - 1


@dataclass(frozen=True)
class Column:
    """Optimizer state beside each row, as `hybridrec.optim.rule.StateColumn`."""

    name: str
    per_row: bool = False
    fill: float = 0.0

    def width(self, dim: int) -> int:
        """Floats beside a row of this dimension."""
        return 1 if self.per_row else dim


@dataclass(frozen=True)
class Rule:
    """The formula of an update and the state that it keeps, as `hybridrec.optim.rule.RowRule`.

    >>> Rule.of({"kind": "adagrad", "state": [["sum", False, 0.1]]}).to_json()
    {'kind': 'adagrad', 'state': [['sum', False, 0.1]]}
    """

    kind: str
    state: tuple[Column, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.state)

    @staticmethod
    def of(given: Any) -> Rule:
        """From JSON values, or a refusal."""
        if not isinstance(given, Mapping) or given.keys() != {"kind", "state"} or given["kind"] not in KINDS:
            raise malformed(f"a rule is {given!r}; it must have a kind ({', '.join(KINDS)}) and a state")
        if not isinstance(given["state"], list) or len(given["state"]) > 2:
            raise malformed(f"the state of a rule is {given['state']!r}; it must be a list of at most two columns")
        return Rule(given["kind"], tuple(map(_column, given["state"])))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "state": [[column.name, column.per_row, column.fill] for column in self.state]}


def _column(given: Any) -> Column:
    types = (str, bool, int | float)
    if (
        not isinstance(given, list)
        or len(given) != 3
        or not all(map(isinstance, given, types))
        or not isfinite(given[2])
    ):
        raise malformed(f"a column of optimizer state is {given!r}; it must be [name, whether one per row, fill]")
    return Column(given[0], given[1], float(given[2]))


@dataclass(frozen=True)
class Declaration:
    """A table whose rows are dealt out to servers; `capacity` is that of the whole table.

    With `rows` it is a fixed one, of ids 0 … rows - 1, and has room for all of them.

    >>> Declaration("user", 16, 1000).capacity_of(3)
    334
    >>> Declaration("item", 16, 1000, rows=1000).capacity_of(3)
    1000
    """

    name: str
    dim: int
    capacity: int
    seed: int = 0
    dtype: str = "float32"
    init: str = "uniform"
    scale: float = 0.05
    eviction: str = "lru"
    ttl: int = 0  # steps, where eviction is "ttl"
    probability: float = 1.0  # of being let in
    min_count: int = 0  # occurrences before an id is let in
    rows: int | None = None  # of a fixed table

    @staticmethod
    def of(given: Any) -> Declaration:
        """From JSON values, or a refusal; keys that are none are refused too."""
        names = [each.name for each in fields(Declaration)]
        if not isinstance(given, Mapping) or set(given) != set(names):
            found = sorted(given) if isinstance(given, Mapping) else given
            raise malformed(f"a table is declared with {found}; it must have {', '.join(names)}")
        made = Declaration(**given)
        made.check()
        return made

    def check(self) -> None:
        """Refuse values that no table has."""
        whole = {"dim": (1, 1 << 20), "capacity": (1, MOST), "seed": (-(2**63), 2**64 - 1)}
        whole |= {"ttl": (0, 2**32 - 1), "min_count": (0, 2**16 - 1)}
        for key, (least, most) in whole.items():
            value = getattr(self, key)
            if type(value) is not int or not least <= value <= most:
                raise self._wrong(key, f"a whole number from {least} to {most}")
        for key, valid in CHOICES.items():
            if getattr(self, key) not in valid:
                raise self._wrong(key, f"one of {', '.join(valid)}")
        for key in ("scale", "probability"):
            if type(value := getattr(self, key)) not in (int, float) or not isfinite(value):
                raise self._wrong(key, "a finite number")
        if not 0 < self.probability <= 1:
            raise self._wrong("probability", "above 0 and at most 1")
        if self.rows is not None and (type(self.rows) is not int or self.rows != self.capacity):
            raise self._wrong("rows", f"None, or the capacity of {self.capacity}")
        if self.rows is not None and (self.eviction, self.probability, self.min_count) != ("none", 1.0, 0):
            raise self._wrong("rows", "None where a table has eviction or admission")
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 1024:
            raise malformed(f"a table is called {self.name!r}; its name must be a string that is not empty")

    def _wrong(self, key: str, rule: str) -> Refusal:
        return malformed(f"table {self.name!r}: {key} is {getattr(self, key)!r}; it must be {rule}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def capacity_of(self, servers: int) -> int:
        """The rows that one of so many servers may hold; of a fixed table, one may have more than its share."""
        return -(-self.capacity // servers) if self.rows is None else self.rows

    @property
    def counted(self) -> bool:
        """Whether rows have counts."""
        return self.eviction == "lfu"

    @property
    def counting(self) -> bool:
        """Whether it matters how often an id was looked up."""
        return self.counted or self.min_count > 1

    def policy(self, servers: int) -> tuple[int, str, int, float, int]:
        """What native code wants to know beside its rows, for one of so many servers."""
        return self.capacity_of(servers), self.eviction, self.ttl, float(self.probability), self.min_count

    def spec(self) -> _native.RowSpec:
        """Its rows as native code wants them described."""
        key = _native.table_key(self.name, self.seed % 2**64)
        return _native.RowSpec(key, self.dim, self.dtype, self.init, float(self.scale))

    def initial(self, ids: np.ndarray) -> np.ndarray:
        """The rows of these ids before any update, [n, dim] in the type of the table.

        >>> Declaration("item", 2, 9, init="constant", scale=0.5).initial(np.array([4]))
        array([[0.5, 0.5]], dtype=float32)
        """
        ids, made = np.ascontiguousarray(ids, np.int64), np.empty((len(ids), self.dim), BITS[self.dtype])
        self.spec().initial(ids.ctypes.data, len(ids), made.ctypes.data)
        return made

    def agree(self, wanted: Declaration, server: str) -> None:
        """Refuse a declaration that differs from this one, which the server has; the error names both values."""
        for key in ("rows", *self.to_json()):  # those of a fixed table are its capacity too
            if (mine := getattr(self, key)) != (theirs := getattr(wanted, key)):
                raise Refusal(
                    "mismatch",
                    f"table {self.name!r}: {server} has {key} {mine!r}, the trainer declares {theirs!r}; declare what "
                    "the server has, or start the servers anew",
                )


def agree_on_rule(table: str, mine: Rule, wanted: Rule, server: str) -> None:
    """Refuse another optimizer than the one whose state lies beside the rows."""
    if mine != wanted:
        raise Refusal(
            "mismatch",
            f"table {table!r}: {server} keeps state for {mine.to_json()}, the trainer's optimizer is "
            f"{wanted.to_json()}; use that optimizer, or start the servers anew",
        )
