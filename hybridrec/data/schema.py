"""What each column is: an id, a dense number, the label, a weight, or something to carry along."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from hybridrec.data.arrow_types import (
    element_type,
    fixed_size,
    is_list,
    is_text,
    list_depth,
    plain_type,
    type_from_json,
    type_to_json,
)
from hybridrec.data.transforms import Cross, Transform, from_json
from hybridrec.remedy import SCHEMA_FILE, no_column, remedied

KINDS = ("id", "dense", "label", "weight", "extra", "skip")
NULLS = ("error", "default", "empty", "id")
NULL_ID = -(2**63)
"""The id of a null under the policy "id": no data uses it by accident, no transform changes it."""


@dataclass(frozen=True)
class Feature:
    """One column and what becomes of it.

    `null` says what a null becomes: "error", "default" (the value of `default`), "empty" (no id at all: an
    empty list, or a dropped element), or "id" (`NULL_ID`, an id of its own). `default` also fills the column
    in files that lack it, and passes through the transforms like any other value. `size` promises a fixed
    list length.

    >>> Feature("tags", "id", pa.list_(pa.int64())).null
    'empty'
    """

    name: str
    kind: str
    type: pa.DataType
    null: str = ""
    default: Any = None
    transforms: tuple[Transform, ...] = ()
    weights: str | None = None
    size: int | None = None
    cross: Cross | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if self.kind not in KINDS:
            raise ValueError(f"feature {self.name!r}: kind {self.kind!r} is not one of {', '.join(KINDS)}")
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                raise TypeError(f"feature {self.name!r}: {transform!r} is no transform, such as Hash() or Clip(0, 10)")
        if self.size is None and self.kind != "skip" and (size := fixed_size(self.output)) is not None:
            object.__setattr__(self, "size", size)
        object.__setattr__(self, "null", self.null or self._usual_null())
        self._check()

    def _usual_null(self) -> str:
        if self.default is not None:
            return "default"
        if self.kind == "dense":
            return "default"
        if self.kind == "id":
            return "empty" if is_list(self.type) and self.size is None else "id"
        return "empty" if self.kind == "extra" and not _is_number(self.type) else "error"

    def _check(self) -> None:
        where = f"feature {self.name!r}"
        if self.null not in NULLS:
            raise ValueError(f"{where}: null policy {self.null!r} is not one of {', '.join(NULLS)}")
        if self.null in ("empty", "id") and self.kind in ("dense", "label", "weight"):
            raise ValueError(f'{where}: null={self.null!r} suits ids; a {self.kind} column takes "error" or "default"')
        if self.null == "id" and self.kind not in ("id", "skip"):  # what is not read has no nulls
            raise ValueError(
                f'{where}: null="id" suits ids, not kind {self.kind!r}; leave null out, or take "error", "default" or '
                '"empty"'
            )
        if self.null == "default" and self.default is None and self.kind != "dense":
            raise ValueError(f'{where}: null="default" needs a default= value')
        if self.weights is not None and self.kind != "id":
            raise ValueError(f"{where}: weights= names the weights of ids; its kind is {self.kind!r}")
        if self.default is not None:
            self._check_default()
        if self.kind in ("skip", "extra"):
            return
        if list_depth(self.type) > 1:
            raise ValueError(f"{where}: {self.type} is a list of lists and travels as kind='extra'")
        made = self.output
        if self.kind == "id" and _is_fraction(element_type(made)):
            raise ValueError(f"{where}: {made} cannot be an id; bucketize it, or use kind='dense'")
        if self.kind != "id" and is_text(element_type(made)):
            raise ValueError(
                f"{where}: {made} cannot be kind={self.kind!r}; hash it as an id, "
                "or give transforms that make numbers "
                "(for a label: IsIn)"
            )
        if self.kind == "weight" and is_list(made):
            raise ValueError(f"{where}: a sample weight is one number per row, not {made}")
        if self.kind in ("dense", "label") and is_list(made) and self.size is None:
            raise ValueError(
                f"{where}: {made} as {self.kind} needs a fixed length; if all rows have as many values, say how many: "
                f'size=3, in a schema file "size": 3 (hybridrec inspect DATA --schema s.json writes one, train with '
                f"data.schema=s.json); else take another column as {self.kind}"
            )
        if self.size is not None and not is_list(made):
            raise ValueError(f"{where}: size={self.size} is the length of a list; {made} is none")

    def _check_default(self) -> None:
        try:
            self.default_row()
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(
                f"feature {self.name!r}: default={self.default!r} is no value of a {self.type} column ({error})"
            ) from None

    def default_row(self) -> pa.Scalar:
        """The default as a row of the column; a single value fills a list (once where its length is free)."""
        default, around = self.default, [self.type]
        while is_list(around[-1]):
            around.append(around[-1].value_type)
        if not isinstance(default, list | tuple):
            for kind in reversed(around[:-1]):
                free = self.size if kind is self.type and self.size else 1
                default = [default] * (fixed_size(kind) or free)
        return pa.scalar(default, self.type)

    @property
    def output(self) -> pa.DataType:
        """The type after the transforms."""
        made = self.type
        for transform in self.transforms:
            try:
                made = transform.output(made)
            except TypeError as error:
                raise TypeError(f"feature {self.name!r}: {error}") from None
        return made

    @property
    def ragged(self) -> bool:
        """Whether the number of ids per row may differ."""
        return self.null == "empty" or (is_list(self.type) and self.size is None)

    @property
    def width(self) -> int:
        """Columns of the dense matrix, or ids per row where that is fixed."""
        return 1 if self.size is None else self.size

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "type": type_to_json(self.type),
            "null": self.null,
        }
        for key in ("default", "weights", "size"):
            if getattr(self, key) is not None:
                made[key] = getattr(self, key)
        if self.transforms:
            made["transforms"] = [transform.to_json() for transform in self.transforms]
        if self.cross is not None:
            made["cross"] = self.cross.to_json()
        return made

    @staticmethod
    def from_json(made: dict[str, Any]) -> Feature:
        known = {field.name for field in dataclasses.fields(Feature)}
        if unknown := sorted(set(made) - known):
            raise ValueError(f"feature {made.get('name')!r}: unknown keys {unknown}; known are {sorted(known)}")
        made = dict(made, type=type_from_json(made["type"]))
        made["transforms"] = tuple(from_json(each) for each in made.get("transforms", ()))
        cross = made.get("cross")
        if cross is not None:
            made["cross"] = from_json(cross)
        return Feature(**made)


def _is_fraction(kind: pa.DataType) -> bool:
    return pt.is_floating(kind) or (pt.is_decimal(kind) and kind.scale != 0)


def _is_number(kind: pa.DataType) -> bool:
    return not (is_text(kind) or is_list(kind))


class Schema(Sequence[Feature]):
    """The features of a data set, in order. Immutable: each edit returns a new one.

    >>> from hybridrec.data import Bucketize
    >>> columns = pa.schema({"user": pa.int64(), "age": pa.float32(), "click": pa.int8()})
    >>> schema = Schema.infer(columns, label="click")
    >>> schema = schema.edit("age", kind="id", transforms=[Bucketize([18.0, 30.0, 50.0])])
    >>> [(feature.name, feature.kind) for feature in schema]
    [('user', 'id'), ('age', 'id'), ('click', 'label')]
    """

    VERSION = 1

    def __init__(self, features: Iterable[Feature]) -> None:
        self._features = tuple(features)
        self._index = {feature.name: i for i, feature in enumerate(self._features)}
        if len(self._index) != len(self._features):
            names = [feature.name for feature in self._features]
            raise ValueError(f"features are named once each; twice: {sorted({n for n in names if names.count(n) > 1})}")
        for feature in self._features:
            sides = [] if feature.cross is None else [feature.cross.left, feature.cross.right]
            for role, name in [("weights", feature.weights), *(("cross", side) for side in sides)]:
                if name is not None and name not in self._index:
                    raise ValueError(f"feature {feature.name!r}: {role}={name!r} is not a column of the schema")
        if len(weights := [feature.name for feature in self._features if feature.kind == "weight"]) > 1:
            raise ValueError(f"a row has one sample weight; the schema has {', '.join(weights)}")

    @staticmethod
    def infer(arrow: pa.Schema, *, label: str | Sequence[str] = (), weight: str | None = None) -> Schema:
        """Integers and strings are ids, floats and bools dense, times and lists of floats extra."""
        labels = (label,) if isinstance(label, str) else tuple(label)
        wanted = [*labels, *([weight] if weight is not None else [])]
        if twice := [name for name in wanted if wanted.count(name) > 1]:
            raise ValueError(
                f"column {twice[0]!r} is named twice as label or weight; a column is one label, or the sample weight"
            )
        if missing := [name for name in wanted if name not in arrow.names]:
            raise ValueError(no_column(missing[0], arrow.names))
        made = []
        for field in arrow:
            if field.name in labels and is_text(element_type(field.type)):
                raise remedied(
                    ValueError,
                    f"label {field.name!r} holds {field.type}, not numbers",
                    call=f"state which values are positive: schema.edit({field.name!r}, kind='label', "
                    "transforms=[IsIn([...])]) and pass schema=",
                    setting='state which values are positive, "transforms": [{"op": "is_in", "values": [...]}], '
                    + SCHEMA_FILE,
                )
            kind = "label" if field.name in labels else "weight" if field.name == weight else _kind(field.type)
            made.append(Feature(field.name, kind, field.type))
        order = {name: i for i, name in enumerate(labels)}
        plain = [feature for feature in made if feature.name not in order]
        return Schema(plain + sorted((f for f in made if f.name in order), key=lambda f: order[f.name]))

    def edit(self, name: str, **changes: Any) -> Schema:
        """The schema with one feature changed; a null policy that was not stated is chosen anew."""
        feature = self[name]
        if unknown := sorted(set(changes) - {field.name for field in dataclasses.fields(Feature)}):
            raise ValueError(f"a feature has no {unknown}; it has {[f.name for f in dataclasses.fields(Feature)]}")
        if feature.null == feature._usual_null():
            changes.setdefault("null", "")
        if feature.size is not None and feature.size == fixed_size(feature.output):
            changes.setdefault("size", None)  # the type says it
        edited = dataclasses.replace(feature, **changes)
        return Schema(edited if each.name == name else each for each in self._features)

    def cross(self, left: str, right: str, *, buckets: int | None = None, name: str | None = None) -> Schema:
        """The schema with one more id feature: the pair of two others."""
        name = name or f"{left}_x_{right}"
        cross = Cross(left, right, name=name, buckets=buckets)
        lists = any(is_list(self[side].type) or self[side].null == "empty" for side in (left, right))
        kind = pa.list_(pa.int64()) if lists else pa.int64()
        return Schema([*self._features, Feature(name, "id", kind, cross=cross)])

    def select(self, names: Sequence[str]) -> Schema:
        """Only these features, in this order; labels and sample weights stay."""
        if isinstance(names, str):
            raise TypeError(f"select() takes a list of names; for one column write [{names!r}]")
        chosen = [self[name] for name in names]
        taken = {feature.name for feature in chosen}
        chosen += [f for f in self._features if f.name not in taken and f.kind in ("label", "weight")]
        taken = {feature.name for feature in chosen}
        needed = {f.weights for f in chosen} | {
            side for f in chosen if f.cross for side in (f.cross.left, f.cross.right)
        }
        helpers = [f for f in self._features if f.name in needed and f.name not in taken]
        return Schema(chosen + [dataclasses.replace(f, kind="skip", null="") for f in helpers])

    def check_against(self, arrow: pa.Schema) -> None:
        """Raise where the data has a column as another type than the schema says."""
        for feature in self._features:
            if feature.cross is not None or feature.name not in arrow.names:
                continue
            found, stated = plain_type(arrow.field(feature.name).type), plain_type(feature.type)
            if found != stated and not pt.is_null(found):
                raise remedied(
                    ValueError,
                    f"column {feature.name!r} is {found} in the data, but {stated} in the schema",
                    call=f"take the data's schema anew, or state it with schema.edit({feature.name!r}, type=...)",
                    setting=f"write the column as {stated}, as in the data that the schema was made of",
                )

    def of(self, *kinds: str) -> list[Feature]:
        """The features of these kinds, in order."""
        return [feature for feature in self._features if feature.kind in kinds]

    def arrow(self) -> pa.Schema:
        """The columns as the files hold them."""
        return pa.schema([(feature.name, feature.type) for feature in self._features if feature.cross is None])

    def to_json(self) -> str:
        features = [feature.to_json() for feature in self._features]
        return json.dumps({"version": self.VERSION, "features": features}, indent=1)

    @staticmethod
    def from_json(text: str, kinds: Mapping[str, str] | None = None) -> Schema:
        """The schema in a text; columns that `kinds` names are of these kinds, whatever the text says."""
        made = json.loads(text)
        if made.get("version") != Schema.VERSION:
            raise ValueError(f"schema version {made.get('version')!r}; this release reads version {Schema.VERSION}")
        return Schema(Feature.from_json(_of_kind(each, (kinds or {}).get(each["name"]))) for each in made["features"])

    def save(self, path: str | os.PathLike[str]) -> None:
        beside = Path(f"{os.fspath(path)}.part")
        beside.write_text(self.to_json() + "\n")
        beside.replace(path)

    @staticmethod
    def load(path: str | os.PathLike[str], kinds: Mapping[str, str] | None = None) -> Schema:
        try:
            return Schema.from_json(Path(path).read_text(), kinds)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not the file of a schema, as Schema.save() writes it ({error!r})") from error

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            if at not in self._index:
                raise ValueError(no_column(at, list(self._index), "the schema"))
            return self._features[self._index[at]]
        return self._features[at]

    def __len__(self) -> int:
        return len(self._features)

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features)

    def __contains__(self, name: object) -> bool:
        return name in self._index or name in self._features

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._features == other._features

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        wide = max([4, *(len(feature.name) for feature in self._features)])
        lines = [f"Schema of {len(self)} columns"]
        for f in self._features:
            notes = [f"null: {f.null}" if f.default is None else f"null: {f.null} ({f.default!r})"]
            notes += [str(transform) for transform in f.transforms]
            notes += [f"weights: {f.weights}"] if f.weights else []
            notes += [f"{f.cross.left} x {f.cross.right}"] if f.cross else []
            lines.append(f"  {f.name:<{wide}}  {f.kind:<6}  {_short(f.type):<22}  {', '.join(notes)}")
        return "\n".join(lines)


def _of_kind(made: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """The JSON of a feature as one of another kind; a null policy that may be of the old kind is chosen anew."""
    if kind is None or made["kind"] == kind:
        return made
    keeps_null = made.get("null") == "error" or made.get("default") is not None
    return {**made, "kind": kind, "null": made.get("null", "") if keeps_null else ""}


def _kind(type_: pa.DataType) -> str:
    element = element_type(type_)
    depth = list_depth(type_)
    if depth > 1 or pt.is_struct(element) or pt.is_map(element):
        return "extra" if not (pt.is_struct(element) or pt.is_map(element)) else "skip"
    if pt.is_interval(element):
        return "skip"
    if pt.is_temporal(element):
        return "extra"
    if pt.is_integer(element) or is_text(element):
        return "id"
    if depth == 1 and fixed_size(type_) is None:
        return "extra"
    return "skip" if pt.is_null(element) else "dense"


def _short(type_: pa.DataType) -> str:
    return str(type_).replace("item: ", "").replace("element: ", "").replace("child 0, ", "")
