"""The transforms by the name they have in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hybridrec.data.transforms.base import Transform
from hybridrec.data.transforms.cross import Cross
from hybridrec.data.transforms.ids import Hash, Modulo
from hybridrec.data.transforms.lookup import IsIn, Vocabulary
from hybridrec.data.transforms.numbers import Bucketize, Clip, Log1p, Standardize
from hybridrec.data.transforms.truncate import Truncate

OPS: dict[str, type[Transform] | type[Cross]] = {
    cls.op: cls for cls in (Hash, Modulo, Bucketize, Log1p, Standardize, Clip, Truncate, Vocabulary, IsIn, Cross)
}


def from_json(value: Mapping[str, Any]) -> Transform | Cross:
    """The transform that a JSON object describes; an unknown op, an unknown or an absent key is an error.

    >>> from_json({"op": "modulo", "n": 10})
    Modulo(n=10)
    """
    if not isinstance(value, Mapping) or "op" not in value:
        raise ValueError(f"a transform is an object with an 'op', not {value!r}; ops are {', '.join(OPS)}")
    if value["op"] not in OPS:
        raise ValueError(f"unknown transform {value['op']!r}; ops are {', '.join(OPS)}")
    cls = OPS[value["op"]]
    given = {key: item for key, item in value.items() if key != "op"}
    valid = [f.name for f in fields(cls) if f.init]  # pyright: ignore[reportArgumentType]  (every op is a dataclass)
    unknown = sorted(map(str, set(given) - set(valid)))
    if unknown:
        raise ValueError(f"{value['op']} has no {', '.join(unknown)}; its keys are {', '.join(valid) or 'none'}")
    try:
        return cls(**given)
    except TypeError as error:
        raise TypeError(f"{value['op']}: {error}") from None
