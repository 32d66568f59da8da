"""A run as a file: `run.toml`, or the config.json of another run, and changes by dotted names."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridrec.train.options import TrainOptions, checked

if TYPE_CHECKING:
    from hybridrec.server.config import ServersConfig

SECTIONS = ("data", "model", "optimizer", "row_optimizer", "train", "servers")
DENSE_KINDS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
ROW_KINDS = {
    "rowwise_adagrad": "RowWiseAdagrad",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "sgd": "SGD",
    "ftrl": "FTRL",
}


@dataclass(frozen=True)
class DataConfig:
    """Which rows are trained on. `valid` is a path, or the share of the last rows to validate on."""

    path: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    weight: str | None = None
    valid: str | float | None = None
    columns: list[str] | None = None
    batch_size: int | None = None  # None: by the number of rows
    shuffle: bool = True
    seed: int = 0
    threads: int | None = None
    schema: str | None = None  # a file with what the columns are; None: inferred
    on_bad_file: str = "error"
    shard: str = "rows"  # of many ranks: "rows", each has batches of its own; "batch", they share every batch

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "threads"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ValueError(f"data.{name} is {value!r}; it must be a whole number")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"data.batch_size is {self.batch_size}; a batch has at least one row")
        for name in ("path", "label", "columns"):
            _check_texts(f"data.{name}", getattr(self, name))
        for name in ("weight", "schema"):
            _check_text(f"data.{name}", getattr(self, name))
        if not isinstance(self.shuffle, bool):
            raise ValueError(f"data.shuffle is {self.shuffle!r}; it must be true or false")
        if self.shard not in ("rows", "batch"):
            raise ValueError(f"data.shard is {self.shard!r}; valid are rows, batch")
        if self.on_bad_file not in ("error", "skip"):
            raise ValueError(f"data.on_bad_file is {self.on_bad_file!r}; valid are error, skip")


@dataclass(frozen=True)
class RunConfig:
    """Everything about a run that can be written down.

    >>> RunConfig.of({"data": {"label": ["click"]}, "model": {"name": "dlrm", "dim": 8}}).model
    {'name': 'dlrm', 'dim': 8}
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    row_optimizer: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    servers: dict[str, Any] = field(default_factory=dict)  # addresses, staleness and more: `ServersConfig`
    loss: str | None = None
    metrics: list[str] | None = None
    out: str | None = None

    @staticmethod
    def of(values: Mapping[str, Any]) -> RunConfig:
        """The config of plain values; an unknown name is an error that lists the valid ones."""
        made = dict(checked("the configuration", values, [each.name for each in fields(RunConfig)]))
        for section in SECTIONS:
            if not isinstance(made.get(section, {}), Mapping):
                raise ValueError(f"{section} is {made[section]!r}; it must be a section: [{section}] in TOML")
        data = dict(checked("data", made.get("data", {}), [each.name for each in fields(DataConfig)]))
        for values_of, name in ((data, "path"), (data, "label"), (data, "columns"), (made, "metrics")):
            if isinstance(values_of.get(name), str):
                values_of[name] = [values_of[name]]
        _check_texts("metrics", made.get("metrics"))
        for name in ("loss", "out"):
            _check_text(name, made.get(name))
        config = replace(RunConfig(**{**made, "data": DataConfig(**data)}))
        config.options()  # raises where the options are wrong
        config.used_servers()
        optimizer_kind("optimizer", config.optimizer, DENSE_KINDS)
        optimizer_kind("row_optimizer", config.row_optimizer, ROW_KINDS)
        return config

    def options(self) -> TrainOptions:
        """The options of the Trainer: `train` without `epochs` and `steps`."""
        valid = ["epochs", "steps", *(each.name for each in fields(TrainOptions))]
        checked("train", self.train, valid)
        return TrainOptions.from_json({k: v for k, v in self.train.items() if k not in ("epochs", "steps")})

    def used_servers(self) -> ServersConfig | None:
        """The servers that rows lie on, if there are any."""
        from hybridrec.server.config import ServersConfig

        return ServersConfig.of(self.servers) if self.servers else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def dotted(sections: Sequence[str] = SECTIONS) -> re.Pattern[str]:
    """What changes a value of these sections: "model.dim=32"."""
    return re.compile(rf"(?P<name>({'|'.join(sections)})\.[\w.]+|loss|metrics|out)=(?P<value>.*)", re.DOTALL)


def _check_text(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; it must be a text")


def _check_texts(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise ValueError(f'{name} is {value!r}; it must be a list of texts, such as ["a", "b"]')


def read_config(path: str | Path) -> dict[str, Any]:
    """The values of a TOML or JSON file; of a run's config.json, those that it was started with."""
    file = Path(path)
    try:
        values = json.loads(file.read_text()) if file.suffix == ".json" else tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {file}; name a run.toml, or the config.json of a run") from None
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; name a run.toml") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is no text; name a run.toml, or the config.json of a run") from None
    except ValueError as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        raise ValueError(f"{file} is no {kind}: {error}; mend that line, or name another file") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds a {type(values).__name__}; a configuration has sections: {', '.join(SECTIONS)}")
    if "run" in values:
        return dict(values["run"])
    if "fit" in values:
        raise ValueError(f"{file} is of a run that was not started by `hybridrec train`; write a run.toml for it")
    return values


def with_overrides(
    values: Mapping[str, Any], overrides: Sequence[str], sections: Sequence[str] = SECTIONS
) -> dict[str, Any]:
    """The values with changes such as "model.dim=32" or "train.early_stopping.patience=5".

    >>> with_overrides({"model": {"name": "deepfm"}}, ["model.dim=32", "loss=mse"])
    {'model': {'name': 'deepfm', 'dim': 32}, 'loss': 'mse'}
    """
    made = deepcopy(dict(values))
    for text in overrides:
        found = dotted(sections).fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} changes nothing known; write SECTION.NAME=VALUE, sections: {', '.join(sections)}"
            )
        *path, last = found["name"].split(".")
        inner = made
        for name in path:
            if not isinstance(inner.get(name) or {}, Mapping):
                raise ValueError(f"{name} is {inner[name]!r}, so {text!r} has no place; make it a section: [{name}]")
            inner[name] = dict(inner.get(name) or {})
            inner = inner[name]
        inner[last] = value_of(found["value"])
    return made


def value_of(text: str) -> Any:
    """A value as TOML writes it, or else the text itself.

    >>> value_of("32"), value_of("[64, 32]"), value_of("cosine"), value_of("true")
    (32, [64, 32], 'cosine', True)
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text == "none" else text


def optimizer_kind(section: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """The class that a section names, and its options, checked against what the class takes."""
    import torch

    from hybridrec import optim

    name = values.get("kind", next(iter(kinds)))
    if name not in kinds:
        raise ValueError(f"{section}.kind is {name!r}; valid are {', '.join(kinds)}")
    home: Any = torch.optim if kinds is DENSE_KINDS else optim
    kind = getattr(home, kinds[name])
    skipped = ("params", "model", "options")
    valid = [each for each in inspect.signature(kind).parameters if each not in skipped]
    if kinds is ROW_KINDS:
        valid += ["overrides", "clip_row_norm", "weight_bound", "nan"]
    options = {key: value for key, value in values.items() if key != "kind"}
    lr = options.get("lr", 0)
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not lr >= 0:
        raise ValueError(f"{section}.lr is {lr!r}; it must be a number from 0 on")
    return kind, dict(checked(section, options, ["kind", *valid]))
