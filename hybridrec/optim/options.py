"""The options of row optimizers: which exist, and which values they may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, TypedDict

from hybridrec.optim.rule import NanPolicy

Values = dict[str, Any]
Overrides = Mapping[str, Mapping[str, Any]]


class RowOptions(TypedDict, total=False):
    """What every row optimizer takes beside its own numbers.

    tables: the names of the tables it updates; all that the model has, unless given.
    overrides: other values for single tables, such as {"user": {"lr": 0.1}}.
    weight_bound: no weight leaves -bound … bound.
    clip_row_norm: the gradient of a row is scaled down to this L2 norm.
    nan: a row whose gradient is not finite is left as it is and counted ("skip"), or is an error ("raise").
    """

    tables: Iterable[str] | None
    overrides: Overrides | None
    weight_bound: float | None
    clip_row_norm: float | None
    nan: NanPolicy


COMMON: Values = {"weight_bound": None, "clip_row_norm": None, "nan": "skip"}


def defaults_of(optimizer: str, own: Values, options: RowOptions) -> Values:
    """The values of a table without overrides: the optimizer's own numbers, and those that all have."""
    valid = [*own, *RowOptions.__annotations__]
    unknown = [name for name in options if name not in valid]
    if unknown:
        raise TypeError(f"{optimizer} has no option {unknown[0]!r}; valid are {', '.join(valid)}")
    given = {name: value for name, value in options.items() if name in COMMON}
    return own | COMMON | given


def overridden(defaults: Values, overrides: Overrides | None, tables: Iterable[str]) -> dict[str, Values]:
    """The values of each table, with those that `overrides` gives for it in place of the defaults."""
    found = {name: dict(defaults) for name in tables}
    for name, values in (overrides or {}).items():
        if name not in found:
            raise ValueError(f"overrides name table {name!r}, which is not updated here; valid are {listed(found)}")
        unknown = [key for key in values if key not in defaults]
        if unknown:
            raise ValueError(f"overrides of table {name!r} set {unknown[0]!r}; valid are {', '.join(defaults)}")
        found[name].update(values)
    return found


def check_values(table: str, values: Mapping[str, Any]) -> None:
    """Refuse a value outside its range; names without a range (those of schedulers) pass."""
    for name, value in values.items():
        allowed, rule = RANGES.get(name, _ANYTHING)
        if not allowed(value):
            raise ValueError(f"table {table!r}: {name} is {value!r}; it must be {rule}")


def listed(names: Iterable[str]) -> str:
    """Names for an error message: the first twenty."""
    quoted = [repr(name) for name in names]
    rest = len(quoted) - 20
    return ", ".join(quoted[:20]) + (f" and {rest} more" if rest > 0 else "")


Range = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value) and 0 <= value < inf


def _is_bound(value: Any) -> bool:
    return value is None or (_is_number(value) and value > 0)


def _are_betas(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(_is_number(b) and 0 <= b < 1 for b in value)


_ANYTHING: Range = (lambda value: True, "")
_SIZE: Range = (_is_size, "a finite number of at least 0")
_BOUND: Range = (_is_bound, "a number above 0, or None")
RANGES: dict[str, Range] = {
    **dict.fromkeys(["lr", "lr_decay", "weight_decay", "momentum", "eps", "l1", "l2", "beta"], _SIZE),
    "initial_accumulator_value": _SIZE,
    "betas": (_are_betas, "two numbers, each at least 0 and below 1"),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
    "weight_bound": _BOUND,
    "clip_row_norm": _BOUND,
    "nan": (lambda value: value in ("skip", "raise"), "'skip' or 'raise'"),
}
