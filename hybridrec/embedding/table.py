"""Table: what a set of embedding rows is, as a value."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from hybridrec.embedding.initial import Initial, Uniform
from hybridrec.embedding.parameters import keep, whole
from hybridrec.embedding.policies import LRU, Admission, Eviction, MultiHash, admission_of, eviction_of
from hybridrec.ops.pooled_lookup.reference import COMBINERS
from hybridrec.ops.row_cache.packing import packed_width

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
COLD = (*DTYPES, torch.int8)
OUT_OF_RANGE = ("error", "hash", "zero")
WHERE = ("device", "host", "server")  # as plans have it
MOST_ROWS = 2**32 - 2


class _Unset(Enum):
    """The mark of an option that was not given, where None is a choice."""

    UNSET = "default"

    def __repr__(self) -> str:
        return "default"


UNSET = _Unset.UNSET


@dataclass(frozen=True)
class Table:
    """A named set of rows of `dim` numbers, and the features that look them up.

    With `rows` the ids are 0 … rows - 1, and `out_of_range` says what happens to others: "error", "hash" (to a row)
    or "zero". With `capacity` the table is dynamic: any id gets a row on its first training lookup, if `admission`
    lets it in, and a full table makes room by `eviction` (None: it refuses new ids). With `hashes` each id is spread
    over several rows of a fixed table. `combiner` pools the rows of a bag, for all features or by feature; "none"
    keeps them as a sequence. A table that is not `trainable` takes no gradient. `where` rows live: on the "device" of
    the collection, as they do by default, on the "host", in the memory of the machine that the device is in, or on a
    "server", where training has servers; elsewhere on the host. A dynamic table with a `path` lives in files of that
    directory, and on the host. Of a fixed table with a `cache`, a number of rows or a share of them, a GPU has no more
    than those at a time, and its host has the others, the cold ones: as they are, or, where `cold` is torch.bfloat16,
    torch.float16 or torch.int8, in that type, which needs less memory and less time on the link. With a `path` too they
    are not in its memory but in files there, which go with the process. Tables of one dimension, of the same types
    and path, all trained or all frozen, share the room of their caches. Where several GPUs divide a table, each has a
    cache for its own rows.

    >>> Table("item", dim=8, rows=1000, features=["item", "history"], combiner={"item": "sum", "history": "mean"})
    Table('item', dim=8, rows=1000, features=('item', 'history'), combiner={'item': 'sum', 'history': 'mean'})
    >>> Table("user", dim=8, capacity=50_000, eviction="lfu").eviction
    LFU()
    >>> Table("page", dim=128, rows=400_000_000, cache=0.1, cold=torch.int8)
    Table('page', dim=128, rows=400000000, cache=0.1, cold=torch.int8)
    >>> Table("page", dim=128, rows=900_000_000, path="/scratch/rows", cache=0.05).path
    '/scratch/rows'
    """

    name: str
    dim: int
    rows: int | None = field(default=None, kw_only=True)
    capacity: int | None = field(default=None, kw_only=True)
    features: Sequence[str] = field(default=(), kw_only=True)
    combiner: str | Mapping[str, str] = field(default="sum", kw_only=True, hash=False)
    init: Initial = field(default=Uniform(), kw_only=True)
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    out_of_range: str | None = field(default=None, kw_only=True)
    admission: Admission | None = field(default=None, kw_only=True)
    eviction: Eviction | str | _Unset | None = field(default=UNSET, kw_only=True)
    hashes: MultiHash | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    where: str | None = field(default=None, kw_only=True)
    path: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    cache: int | float | None = field(default=None, kw_only=True)
    cold: torch.dtype | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"a table's name must be a string that is not empty, got {self.name!r}")
        keep(self, dim=whole(self._who, "dim", self.dim, least=1))
        self._check_size()
        keep(self, features=_features(self._who, self.name, self.features))
        keep(self, combiner=_combiner(self._who, tuple(self.features), self.combiner))
        self._check_values()
        (self._check_dynamic if self.dynamic else self._check_fixed)()

    @property
    def _who(self) -> str:
        return f"table {self.name!r}"

    def _check_size(self) -> None:
        given = [name for name in ("rows", "capacity", "hashes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{self._who} has {' and '.join(given) or 'no size'}; give one of rows= (ids 0 … rows - 1), capacity= "
                "(a dynamic table: any id) and hashes= (any id, spread over fixed rows)"
            )
        if self.hashes is not None and not isinstance(self.hashes, MultiHash):
            raise TypeError(f"{self._who}: hashes is {self.hashes!r}; it must be MultiHash(rounds, size)")
        if self.capacity is not None:
            keep(self, capacity=whole(self._who, "capacity", self.capacity, least=1))
        elif self.hashes is not None:
            whole(self._who, "rounds * size of hashes", self.hashes.rows, least=1, most=MOST_ROWS)
        else:
            keep(self, rows=whole(self._who, "rows", self.rows, least=1, most=MOST_ROWS))

    def _check_values(self) -> None:
        if not isinstance(self.init, Initial):
            raise TypeError(
                f"{self._who}: init is {self.init!r}; valid are Uniform(scale), Normal(std), Constant(value)"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"{self._who}: dtype is {self.dtype}; valid are {', '.join(map(str, DTYPES))}")
        if not isinstance(self.trainable, bool):
            raise TypeError(f"{self._who}: trainable is {self.trainable!r}; it must be True or False")
        if self.where is not None and self.where not in WHERE:
            valid = ", ".join(map(repr, WHERE))
            raise ValueError(f"{self._who}: where is {self.where!r}; valid are {valid}, and None for the device")
        if self.path is not None:
            self._check_path(self.path)
        if self.cache is not None:
            self._check_cache(self.cache)
        if self.cold is not None:
            self._check_cold(self.cold)

    def _check_cache(self, cache: int | float) -> None:
        number = isinstance(cache, (int, float)) and not isinstance(cache, bool)
        if not (number and cache > 0 and (isinstance(cache, int) or cache <= 1)):
            raise ValueError(
                f"{self._who}: cache is {cache!r}; it must be a number of rows, or a share of them up to 1.0"
            )
        if self.rows is None:
            raise ValueError(f"{self._who}: cache= is for tables with rows=; leave it out")
        if cache > self.rows:
            raise ValueError(
                f"{self._who}: cache is {cache:,}, and the table has {self.rows:,} rows, of which a cache has some; "
                "leave it out to have all of them on the GPU"
            )
        if self.on_host:
            raise ValueError(f"{self._who} lives on the host, and a cache is on a GPU; leave where= out, or cache=")

    def _check_cold(self, cold: torch.dtype) -> None:
        if cold not in COLD:
            valid = ", ".join(map(str, COLD))
            raise ValueError(f"{self._who}: cold is {cold!r}; valid are {valid}, and None for the table's own type")
        if self.cache is None:
            raise ValueError(f"{self._who}: cold is {cold}, but without a cache no row is cold; give cache= too")
        if cold != self.dtype != torch.float32:
            raise ValueError(
                f"{self._who}: cold is {cold}, but rows of {self.dtype} are kept as they are; leave out cold= or dtype="
            )

    @property
    def cold_dtype(self) -> torch.dtype:
        """The type in which the host keeps rows of a table with a cache."""
        return self.cold or self.dtype

    def cold_row_bytes(self, dim: int) -> int:
        """What so many columns of a cold row take, beside its state.

        >>> Table("item", dim=6, rows=1000, cache=0.2, cold=torch.int8).cold_row_bytes(6)
        12
        """
        return packed_width(dim, self.cold_dtype) * self.cold_dtype.itemsize

    def cached(self, rows: int) -> int:
        """How many of so many rows of a table with a cache a GPU has at a time.

        >>> [Table("item", dim=8, rows=1000, cache=cache).cached(500) for cache in (0.2, 300, 600)]
        [100, 300, 500]
        """
        assert self.cache is not None, "the table has a cache"
        wanted = math.ceil(self.cache * rows) if isinstance(self.cache, float) else self.cache
        return min(rows, max(1, wanted))

    def _check_path(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise TypeError(f"{self._who}: path is {path!r}; it must name a directory")
        if not self.dynamic:
            return self._check_cold_path(os.fspath(path))
        if self.where == "device":
            raise ValueError(f"{self._who} has a path, so it lives on the host; leave where= out")
        return keep(self, path=os.fspath(path), where="host")

    def _check_cold_path(self, path: str) -> None:
        if self.cache is None:
            raise ValueError(
                f"{self._who} has fixed rows, which lie in memory; give capacity= with path=, or cache= for a GPU that "
                "has its cold rows in files there, or no path="
            )
        keep(self, path=path)

    def _check_fixed(self) -> None:
        for option in ("eviction", "admission"):
            if getattr(self, option) not in (None, UNSET):
                raise ValueError(f"{self._who} has fixed rows and no {option}; give capacity= in place of rows=")
        keep(self, eviction=None)
        if self.hashes is not None:
            if self.out_of_range is not None:
                raise ValueError(f"{self._who} hashes every id, so none is out of range; leave out_of_range out")
            if "max" in self.combiners.values():
                raise ValueError(
                    f"{self._who}: combiner 'max' has no meaning for hashes=; choose sum, mean, sqrtn or none"
                )
            return
        keep(self, out_of_range="error" if self.out_of_range is None else self.out_of_range)
        if self.out_of_range not in OUT_OF_RANGE:
            valid = ", ".join(map(repr, OUT_OF_RANGE))
            raise ValueError(f"{self._who}: out_of_range is {self.out_of_range!r}; valid are {valid}")

    def _check_dynamic(self) -> None:
        if self.out_of_range is not None:
            raise ValueError(f"{self._who} is dynamic and takes any id; leave out_of_range out, or give rows=")
        keep(self, admission=admission_of(self._who, self.admission))
        keep(self, eviction=LRU() if self.eviction is UNSET else eviction_of(self._who, self.eviction))

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def dynamic(self) -> bool:
        """Whether ids get their rows as they come."""
        return self.capacity is not None

    @property
    def on_host(self) -> bool:
        """Whether rows live in the memory of the host, wherever the others of the collection do."""
        return self.where in ("host", "server")

    @property
    def fixed_rows(self) -> int:
        """The rows of a table that is not dynamic."""
        rows = self.rows if self.hashes is None else self.hashes.rows
        assert rows is not None, "a dynamic table has a capacity"
        return rows

    @property
    def combiners(self) -> dict[str, str]:
        """The combiner of every feature."""
        given = self.combiner
        return {name: given if isinstance(given, str) else given[name] for name in self.features}

    @property
    def group(self) -> int:
        """Rows that one id stands for."""
        return 1 if self.hashes is None else self.hashes.rounds

    def size(self) -> str:
        """The number of rows for people."""
        if self.capacity is not None:
            return f"≤ {self.capacity:,}"
        return f"{self.fixed_rows:,}"

    def __repr__(self) -> str:
        usual = {"features": (self.name,), "eviction": LRU() if self.dynamic else None}
        usual["out_of_range"] = "error" if self.rows is not None else None
        shown = [repr(self.name), f"dim={self.dim}"]
        for name, option in self.__dataclass_fields__.items():
            if option.kw_only and getattr(self, name) != usual.get(name, option.default):
                shown.append(f"{name}={getattr(self, name)!r}")
        return f"Table({', '.join(shown)})"


def _features(who: str, name: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"{who}: features is the string {given!r}; it must be a list, such as [{given!r}]")
    names = tuple(given) or (name,)
    if wrong := [feature for feature in names if not isinstance(feature, str)]:
        raise TypeError(f"{who}: features holds {wrong[0]!r}; it must hold names")
    if twice := sorted({feature for feature in names if names.count(feature) > 1}):
        raise ValueError(f"{who}: features {', '.join(twice)} appear more than once; name each once")
    return names


def _combiner(who: str, features: tuple[str, ...], given: Any) -> str | dict[str, str]:
    if isinstance(given, str):
        return _known(who, given)
    if not isinstance(given, Mapping):
        raise TypeError(f"{who}: combiner is {given!r}; it must be a name, or names by feature")
    if strange := [name for name in given if name not in features]:
        raise ValueError(f"{who}: combiner names {strange[0]!r}, which is no feature; those are {', '.join(features)}")
    if absent := [name for name in features if name not in given]:
        raise ValueError(f"{who}: combiner leaves out {', '.join(absent)}; give one for each feature")
    return {name: _known(who, given[name]) for name in features}


def _known(who: str, combiner: str) -> str:
    if combiner not in COMBINERS:
        raise ValueError(f"{who}: combiner is {combiner!r}; valid are {', '.join(COMBINERS)}")
    return combiner
