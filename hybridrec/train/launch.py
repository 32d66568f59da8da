"""From a configuration to a Trainer and its data: what is not stated is inferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hybridrec.data import CsvOptions, csv, ipc, parquet
from hybridrec.data.dataset import Dataset
from hybridrec.data.schema import Schema
from hybridrec.models.build import build, chosen
from hybridrec.parallel.ranks import Ranks
from hybridrec.remedy import within
from hybridrec.train.optimizers import DENSE_LR, ROW_LR
from hybridrec.train.run_config import DENSE_KINDS, ROW_KINDS, DataConfig, RunConfig, optimizer_kind
from hybridrec.train.run_directory import RunDirectory
from hybridrec.train.seeds import seed_everything
from hybridrec.train.together import join
from hybridrec.train.trainer import Trainer

LARGEST_BATCH, SMALLEST_BATCH = 8192, 64
STEPS_AN_EPOCH = 800  # that a small data set should give
NAMES = {parquet: "Parquet", csv: "CSV", ipc: "Arrow"}
OPENERS = {".csv": csv, ".tsv": csv, ".arrow": ipc, ".feather": ipc, ".ipc": ipc}


class Launch(NamedTuple):
    """A run that can start."""

    trainer: Trainer
    train: Dataset
    valid: Dataset | None
    epochs: int | None
    steps: int | None


def launch(config: RunConfig) -> Launch:
    """Open the data, make the model and its Trainer."""
    if config.out is not None:
        RunDirectory(config.out).check_place()
    options = config.options()
    train, valid = datasets(config.data, join(options.timeout))
    if options.seed is not None:
        seed_everything(options.seed)  # before the layers are drawn
    name, stated = model_of(config, train.schema)
    try:
        model = build(name, train.schema, **stated)
    except TypeError as error:  # a value of another type than an option of the model or its tables takes
        raise ValueError(str(error)) from error
    usual = "in_batch_softmax" if type(model).__name__ == "TwoTower" else "bce"
    trainer = Trainer(
        model,
        _optimizer("optimizer", config.optimizer, DENSE_KINDS, DENSE_LR),
        _optimizer("row_optimizer", config.row_optimizer, ROW_KINDS, ROW_LR),
        out=config.out,
        loss=config.loss or usual,
        metrics=config.metrics,
        options=options,
        servers=config.used_servers(),
    )
    trainer.about["run"] = config.to_json()
    trainer.expect(train)  # before somebody asks the model about its rows
    return Launch(trainer, train, valid, config.train.get("epochs"), config.train.get("steps"))


def check(config: RunConfig) -> None:
    """Refuse what `launch` would refuse about the data, and about the model's name and options. Nothing is made."""
    train, _ = datasets(config.data)
    chosen(*model_of(config, train.schema))


def model_of(config: RunConfig, schema: Schema) -> tuple[str, dict[str, Any]]:
    """The name of the model, and what is stated about it."""
    options = {option: value for option, value in config.model.items() if option != "name"}
    return model_name(config, len(schema.of("label"))), options


def model_name(config: RunConfig, labels: int) -> str:
    """The model that is asked for, or the usual one for so many labels.

    >>> model_name(RunConfig(), 1), model_name(RunConfig(), 3), model_name(RunConfig(model={"name": "din"}), 1)
    ('deepfm', 'mmoe', 'din')
    """
    return config.model.get("name", "deepfm" if labels < 2 else "mmoe")


def _optimizer(section: str, values: dict[str, Any], kinds: dict[str, str], lr: float) -> Any:
    kind, options = optimizer_kind(section, values, kinds)

    def make(target: Any) -> Any:
        try:
            return kind(target, **{"lr": lr, **options})
        except TypeError as error:
            raise ValueError(
                f"{section} cannot be made with {options} ({error}); mend the value that does not fit"
            ) from error

    return make


def datasets(data: DataConfig, ranks: Ranks | None = None) -> tuple[Dataset, Dataset | None]:
    """What to train on, and what to validate on; of many ranks, this one's rows to train on."""
    if not data.path:
        raise ValueError("there is no data to train on; name the files: hybridrec train DATA, or data.path")
    files = {"batch_size": LARGEST_BATCH, "threads": data.threads, "on_bad_file": data.on_bad_file}
    if data.schema is None:
        opened = open_data(data.path, label=data.label, weight=data.weight, **files)
    else:
        opened = open_data(data.path, schema=read_schema(data), **files)
    if not opened.schema.of("label"):
        names = ", ".join(feature.name for feature in opened.schema)
        raise ValueError(f"which column is the label? name it with --label, or data.label; the data has {names}")
    opened = opened if data.columns is None else opened.select(data.columns)
    share = _share(data.valid)
    train, valid = opened.split(1 - share) if share is not None else (opened, None)
    if share is None and data.valid is not None:
        try:
            valid = open_data([str(data.valid)], schema=opened.schema, **files)
        except ValueError as error:
            raise within("validation data", error) from error
    sharing = 1 if ranks is None or data.shard == "batch" else ranks.world
    size = data.batch_size or batch_size_for(train.num_rows // sharing)
    train = train.batch(size)
    train = train.shuffle(seed=data.seed) if data.shuffle else train
    train = train if ranks is None else train.shard(ranks.rank, ranks.world, by="batch" if sharing == 1 else "rows")
    return train, None if valid is None else valid.batch(size)


def read_schema(data: DataConfig) -> Schema:
    """The schema in a file, with the label and the weight that are named beside it."""
    assert data.schema is not None, "there is a file"
    kinds = dict.fromkeys(data.label, "label") | ({data.weight: "weight"} if data.weight else {})
    try:
        schema = Schema.load(data.schema, kinds)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no file {data.schema}, which data.schema names; write one with hybridrec inspect DATA --schema "
            f"{data.schema}"
        ) from None
    for name in kinds:
        schema[name]  # an error, where there is no such column
    return schema


def open_data(
    paths: list[str],
    *,
    batch_size: int,
    schema: Schema | None = None,
    like: Schema | None = None,
    **options: Any,
) -> Dataset:
    """A dataset of files, all of one format by their endings: Parquet, CSV, TSV or Arrow.

    Text has no types: its columns are read in those of `schema`, or of one that the data should be `like`.
    """
    formats = {path: OPENERS.get(Path(path.removesuffix(".gz")).suffix.lower(), parquet) for path in paths}
    opener, *others = dict.fromkeys(formats.values())
    if others:
        first, other = (next(path for path, each in formats.items() if each is kind) for kind in (opener, others[0]))
        raise ValueError(
            f"{first} is read as {NAMES[opener]} and {other} as {NAMES[others[0]]}, and files read together have one "
            "format; make Parquet of the others with hybridrec convert"
        )
    kept = {name: value for name, value in options.items() if value not in (None, [], ())}
    wanted = schema or like
    if opener is csv and wanted is not None:
        kept["format"] = CsvOptions(types=_other_types(csv(list(paths), batch_size=1, **kept), wanted))
    return opener(list(paths), batch_size=batch_size, schema=schema, **kept)


def _other_types(found: Dataset, wanted: Schema) -> dict[str, pa.DataType]:
    """The types in which columns are wanted, where text was taken for something else."""
    columns = {field.name: field.type for field in wanted.arrow() if not pa.types.is_nested(field.type)}
    return {f.name: columns[f.name] for f in found.schema if f.name in columns and f.type != columns[f.name]}


def batch_size_for(rows: int) -> int:
    """A power of two that gives a small data set some hundred steps an epoch, and a large one 8192.

    >>> batch_size_for(20_000), batch_size_for(2_000_000)
    (64, 2048)
    """
    size = LARGEST_BATCH
    while size > SMALLEST_BATCH and rows / size < STEPS_AN_EPOCH:
        size //= 2
    return size


def _share(valid: str | float | None) -> float | None:
    """The share of rows that `valid` states, if it is none of a path."""
    try:
        share = float(valid) if valid is not None else None
    except ValueError:
        return None
    if share is not None and not 0 < share < 1:
        raise ValueError(f"valid is {valid}; a share of the rows is above 0 and below 1")
    return share
