"""Words of a command line: files, and settings such as `model.dim=32`; the names that settings have."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from hybridrec.train.options import EarlyStopping, Schedule, TrainOptions
from hybridrec.train.run_config import DataConfig, dotted

LIKE_A_SETTING = re.compile(r"(?P<name>[A-Za-z_][\w.]*)=(?P<value>[^*?]*)")  # and not like a glob of folders key=value


USUAL = {"model": "model.name", "optimizer": "optimizer.kind", "row_optimizer": "row_optimizer.kind"}


class Words(NamedTuple):
    """What the words of a command line are."""

    data: list[str]
    settings: list[str]


def words_of(words: Sequence[str]) -> Words:
    """Tell files from settings. A word that looks like a setting and is neither is an error that names the nearest one.

    >>> words_of(["clicks.parquet", "model.dim=32"])
    Words(data=['clicks.parquet'], settings=['model.dim=32'])
    >>> words_of(["clicks.parquet", "modle.dim=3"])
    Traceback (most recent call last):
    ValueError: 'modle.dim=3' is neither a file nor a setting; did you mean model.dim=3?
    """
    found = Words([], [])
    for word in words:
        if dotted().fullmatch(word):
            found.settings.append(word)
            continue
        like = LIKE_A_SETTING.fullmatch(word)
        if like is not None and not os.path.exists(word):
            raise ValueError(f"{word!r} is neither a file nor a setting; {_hint(like['name'], like['value'])}")
        found.data.append(word)
    return found


def _hint(name: str, value: str) -> str:
    near = nearest(name)
    if near is None:
        return "settings are SECTION.NAME=VALUE, such as model.dim=32, or loss, metrics, out"
    return f"did you mean {near}={value}?"


def nearest(name: str) -> str | None:
    """The setting that is meant: one that is written much like it, else one of this last name.

    >>> nearest("dim"), nearest("train.epoch"), nearest("lrate"), nearest("xyz")
    ('model.dim', 'train.epochs', None, None)
    """
    if name in USUAL:
        return USUAL[name]
    known = names()
    same = [each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]]
    close = difflib.get_close_matches(name, known, 1, 0.75) or difflib.get_close_matches(name, same, 1, 0.0)
    return close[0] if close else None


def names() -> list[str]:
    """All settings by their dotted names."""
    from hybridrec.models.build import MODELS
    from hybridrec.models.model import options_of

    models = dict.fromkeys(option for kind in MODELS.values() for option in options_of(kind))
    inner = {"schedule": Schedule, "row_schedule": Schedule, "early_stopping": EarlyStopping}
    return [
        *("loss", "metrics", "out", "model.name"),
        *(f"model.{option}" for option in models),
        *(f"data.{each.name}" for each in fields(DataConfig)),
        *("train.epochs", "train.steps"),
        *(f"train.{each.name}" for each in fields(TrainOptions)),
        *(f"train.{name}.{each.name}" for name, kind in inner.items() for each in fields(kind)),
        *("optimizer.lr", "optimizer.kind", "row_optimizer.lr", "row_optimizer.kind"),
    ]
