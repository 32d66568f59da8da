"""Models by name, for command lines and configuration files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hybridrec.data.schema import Schema
from hybridrec.models.dcnv2 import DCNv2
from hybridrec.models.deepfm import DeepFM
from hybridrec.models.din import DIN
from hybridrec.models.dlrm import DLRM
from hybridrec.models.mmoe import MMoE
from hybridrec.models.model import Model, options_of
from hybridrec.models.options import RULES, check_option
from hybridrec.models.twotower import TwoTower
from hybridrec.models.widedeep import WideDeep

MODELS: dict[str, type[Model]] = {
    "widedeep": WideDeep,
    "dlrm": DLRM,
    "deepfm": DeepFM,
    "dcnv2": DCNv2,
    "din": DIN,
    "mmoe": MMoE,
    "twotower": TwoTower,
}
NAMES = tuple(MODELS)


def build(name: str, schema: Schema, **config: Any) -> Model:
    """The model of this name for a schema, with options as `config()` gives them.

    >>> import pyarrow as pa
    >>> schema = Schema.infer(pa.schema({"user": pa.int64(), "click": pa.int8()}), label="click")
    >>> model = build("deepfm", schema, hidden=[8])
    >>> build("deepfm", schema, **model.config()).config() == model.config()
    True
    """
    kind, options = chosen(name, config)
    return kind(schema, **options)


def chosen(name: str, config: Mapping[str, Any]) -> tuple[type[Model], dict[str, Any]]:
    """The model of this name and its options, refused where it does not take them. Nothing is made.

    >>> chosen("twotower", {"item": "id"})
    (<class 'hybridrec.models.twotower.TwoTower'>, {'item': ['id']})
    """
    if name not in NAMES:
        raise ValueError(f"no model {name!r}; there are {', '.join(NAMES)}")
    kind, options = MODELS[name], dict(config)
    if unknown := [option for option in options if option not in options_of(kind)]:
        raise ValueError(f"model {name!r} has no option {unknown[0]!r}; it takes {', '.join(options_of(kind))}")
    if lacking := [option for option in required_options(kind) if option not in options]:
        example = RULES[annotation_of(kind, lacking[0])].example
        raise ValueError(f"model {name!r} needs {lacking[0]!r}, names of features: model.{lacking[0]}={example}")
    for option, value in config.items():
        if annotation_of(kind, option) == "Sequence[str]" and isinstance(value, str):
            options[option] = [value]
        check_option(option, annotation_of(kind, option), options[option])
    return kind, options


def annotation_of(kind: type[Model], option: str) -> str:
    """What an option of a model may be, as its signature says it; nothing for those that all models have."""
    parameters = inspect.signature(kind).parameters
    return str(parameters[option].annotation) if option in parameters else ""


def required_options(kind: type[Model]) -> list[str]:
    """The arguments of a model that have no default, beside the schema.

    >>> required_options(DIN)
    ['history']
    """
    parameters = inspect.signature(kind).parameters.values()
    plain = [each for each in parameters if each.kind is not each.VAR_KEYWORD and each.name != "schema"]
    return [each.name for each in plain if each.default is each.empty]
