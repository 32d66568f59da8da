"""Schema to tables: which embedding table each id feature gets. A pure function of its arguments."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any

from hybridrec.data.schema import Feature, Schema
from hybridrec.data.transforms import Bucketize, Modulo, Truncate, Vocabulary
from hybridrec.embedding import Constant, Table
from hybridrec.models.options import decode

CAPACITY = 10**10  # rows come as ids are seen; what is never reached costs nothing
OPTIONS = tuple(name for name in Table.__dataclass_fields__ if name not in ("name", "features"))
SIZES = ("rows", "capacity", "hashes")
TIERS = ("cache", "cold", "path")  # what fixed tables say of hot and cold rows
DYNAMIC = ("capacity", "admission", "eviction")  # options of dynamic tables only

Options = Mapping[str, Mapping[str, Any]]
"""Options of `hr.Table` by table; those under "*" are for all tables that do not say otherwise and can have them."""


def tables_of(
    schema: Schema,
    dim: int,
    *,
    share: Mapping[str, str] | None = None,
    options: Options | None = None,
    sequences: Collection[str] = (),
) -> list[Table]:
    """The tables for the id features of a schema: one each, under its own name, or the one that it shares.

    A table has fixed rows where transforms bound the ids (buckets, modulo, vocabulary), else it is dynamic. Lists
    are pooled by their mean, and left as they are where they are among the `sequences`.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"item": pa.int64(), "history": pa.list_(pa.int64()), "click": pa.int8()})
    >>> schema = Schema.infer(columns, label="click")
    >>> tables_of(schema, 8, share={"history": "item"}, options={"item": {"capacity": 1000}})
    [Table('item', dim=8, capacity=1000, features=('item', 'history'), combiner={'item': 'sum', 'history': 'mean'})]
    """
    features = {feature.name: feature for feature in schema.of("id")}
    groups = _groups(features, share or {})
    given = options or {}
    _check_options(given, tuple(groups))
    made = []
    for name, members in groups.items():
        rows = _rows(members)
        chosen = _chosen(given.get("*", {}), given.get(name, {}), fixed=rows is not None)
        combiner = {each.name: "none" if each.name in sequences else _combiner(each) for each in members}
        settings = {"dim": dim, "features": tuple(combiner), "combiner": combiner, **chosen}
        if isinstance(settings["combiner"], str):  # for all that are pooled
            settings["combiner"] = {
                feature: usual if usual == "none" else settings["combiner"] for feature, usual in combiner.items()
            }
        if not any(size in chosen for size in SIZES):
            settings |= _size(rows, members, chosen)
        own = given.get(name, {})
        if "cache" in settings and "cache" not in own and not _takes_cache(settings):
            settings = {option: value for option, value in settings.items() if option in own or option not in TIERS}
        made.append(Table(name, **settings))
    return made


def wide_tables(tables: list[Table], width: int) -> list[Table]:
    """Tables "wide.NAME" of first-order weights for the same features: `width` numbers per id, 0 at first.

    >>> wide_tables([Table("item", dim=8, rows=100)], 1)
    [Table('wide.item', dim=1, rows=100, features=('item',), init=Constant(value=0.0))]
    """
    made = []
    for table in tables:
        combiner = {name: "mean" if each == "none" else each for name, each in table.combiners.items()}
        same = set(combiner.values()) == {"sum"}
        changes: dict[str, Any] = {"dim": width, "init": Constant(), "combiner": "sum" if same else combiner}
        if table.dynamic and table.path is not None:  # whose files have a directory of their own
            folder, last = os.path.split(os.path.normpath(table.path))
            changes["path"] = os.path.join(folder, f"wide.{last}")
        made.append(dataclasses.replace(table, name=f"wide.{table.name}", **changes))
    return made


def fixed_rows(feature: Feature) -> int | None:
    """The number of ids that the transforms leave, 0 … n - 1, or None where they set no bound.

    >>> import pyarrow as pa
    >>> fixed_rows(Feature("age", "id", pa.float32(), transforms=(Bucketize([18.0, 65.0]),)))
    4
    """
    for transform in reversed(feature.transforms):
        if isinstance(transform, Bucketize):
            return len(transform.boundaries) + 2  # one bucket more than boundaries, and one for NaN
        if isinstance(transform, Modulo):
            return transform.n
        if isinstance(transform, Vocabulary):
            unknown = 0 if isinstance(transform.oov, str) else transform.oov
            return 1 + max(len(transform.values), unknown) if unknown >= 0 else None
        if not isinstance(transform, Truncate):
            return None
    return feature.cross.buckets if feature.cross is not None else None


def _groups(features: Mapping[str, Feature], share: Mapping[str, str]) -> dict[str, list[Feature]]:
    """The features of each table, its owner first."""
    for name in (*share, *share.values()):
        if name not in features:
            raise ValueError(f"share names {name!r}, which is no id feature; those are {', '.join(features)}")
    if chained := [name for name in share.values() if name in share]:
        raise ValueError(f"share sends features to {chained[0]!r}, which itself shares a table; name that one")
    owners = {name: [feature] for name, feature in features.items() if name not in share}
    for name, owner in share.items():
        owners[owner].append(features[name])
    return owners


def _combiner(feature: Feature) -> str:
    return "mean" if feature.ragged or feature.size is not None else "sum"


def _rows(members: list[Feature]) -> int | None:
    """Rows for all ids of these features, or None where one of them has no bound."""
    rows = [count for count in map(fixed_rows, members) if count is not None]
    return max(rows) if len(rows) == len(members) else None


def _chosen(common: Mapping[str, Any], own: Mapping[str, Any], *, fixed: bool) -> dict[str, Any]:
    """A table's own options over those of all; of the latter, none about another kind of size."""
    left_out: tuple[str, ...] = SIZES if any(size in own for size in SIZES) else ()
    if "rows" in own or "hashes" in own or (fixed and not any(option in own for option in DYNAMIC)):
        left_out += DYNAMIC
    kept = {option: value for option, value in common.items() if option not in left_out}
    return {option: decode(value) for option, value in {**kept, **own}.items()}


def _size(rows: int | None, members: list[Feature], chosen: Mapping[str, Any]) -> dict[str, Any]:
    if rows is None or any(option in chosen for option in DYNAMIC):
        return {"capacity": CAPACITY}
    nulls = any(feature.null == "id" for feature in members)  # the one id that no transform bounds
    return {"rows": rows, **({"out_of_range": "zero"} if nulls and "out_of_range" not in chosen else {})}


def _takes_cache(settings: Mapping[str, Any]) -> bool:
    """Whether a cache that is meant for all tables suits this one: it may be small, dynamic or on the host."""
    rows, cache = settings.get("rows"), settings.get("cache")
    larger = isinstance(cache, int) and isinstance(rows, int) and cache > rows
    return rows is not None and settings.get("where") in (None, "device") and not larger


def _check_options(options: Options, names: tuple[str, ...]) -> None:
    for name, given in options.items():
        if name != "*" and name not in names:
            raise ValueError(f"tables names {name!r}, which is no table; those are {', '.join(names)}, and * for all")
        if not isinstance(given, Mapping):
            raise ValueError(f"tables has {given!r} for {name!r}; it must be a dict, such as {{'rows': 1000}}")
        if unknown := [option for option in given if option not in OPTIONS]:
            raise ValueError(f"table {name!r} has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
