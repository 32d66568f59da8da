"""Census income: WideDeep on the original UCI split. `python -m recipes.adult_census --help`

Every number is used twice: as a dense column, and as an id with a row of its own, which learns what no line can (an
odd capital gain of 7688 says more than its size). Settings were chosen on a fifth of the training rows (`--check`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow.parquet as pq
import typer

if TYPE_CHECKING:
    from hybridrec.data import Dataset
    from hybridrec.models import Model

NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
CROSSES = (
    ("education", "occupation"),
    ("marital_status", "occupation"),
    ("relationship", "age_id"),
    ("education", "hours_per_week_id"),
)


@dataclass(frozen=True)
class Settings:
    """How to train."""

    batch_size: int = 256
    epochs: int = 8
    lr: float = 1e-3
    row_lr: float = 0.02
    dim: int = 8
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.3


def folder() -> Path:
    """Where the data lie: HYBRIDREC_DATA, else ../shared/data beside the project."""
    root = os.environ.get("HYBRIDREC_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(root) / "adult_census_income"


def dataset(part: str, settings: Settings) -> Dataset:
    """The rows of "train" or "test", with numbers as ids too, and with crosses. The sampling weight is left out."""
    import hybridrec as hr
    from hybridrec.data import IsIn, Log1p

    table = pq.read_table(folder() / f"{part}.parquet").drop_columns(["fnlwgt"])
    for name in NUMBERS:
        table = table.append_column(f"{name}_id", table[name])
    ds = hr.data.table(table, batch_size=settings.batch_size)
    schema = ds.schema.edit("income", kind="label", transforms=[IsIn((">50K", ">50K."))])
    for name in NUMBERS:
        schema = schema.edit(name, kind="dense", transforms=[Log1p()] if name.startswith("capital") else [])
    for left, right in CROSSES:
        schema = schema.cross(left, right)
    return ds.with_schema(schema)


def split(settings: Settings, check: bool) -> tuple[Dataset, Dataset]:
    """What to train on, and what to test on: the original split, or for a check a fifth of its training rows."""
    train = dataset("train", settings)
    return train.split(0.8, seed=7) if check else (train, dataset("test", settings))


def train(ds: Dataset, settings: Settings, seed: int = 0) -> Model:
    """A trained WideDeep."""
    import torch

    import hybridrec as hr
    from hybridrec.models import WideDeep
    from recipes.plain_loop import fit

    torch.manual_seed(seed)
    model = WideDeep(ds.schema, settings.dim, hidden=settings.hidden, dropout=settings.dropout, seed=seed)
    optimizers = torch.optim.Adam(model.parameters(), lr=settings.lr), hr.optim.Adagrad(model, lr=settings.row_lr)
    fit(model, ds.shuffle(seed=seed, rows="all"), optimizers, settings.epochs)
    return model


def auc(model: Model, ds: Dataset) -> float:
    """The AUC of a model on some rows."""
    from sklearn.metrics import roc_auc_score

    from recipes.plain_loop import predict

    return float(roc_auc_score(*predict(model, ds.batch(8192))))


def adult_census(
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with the seeds 0, 1, ...")] = 1,
    check: Annotated[bool, typer.Option(help="Test on a fifth of the training rows.")] = False,
) -> None:
    """Train WideDeep on the census and print the AUC on the test rows."""
    settings = Settings()
    before, after = split(settings, check)
    for seed in range(seeds):
        typer.echo(f"seed {seed}: income {auc(train(before, settings, seed), after):.4f}")


if __name__ == "__main__":
    typer.run(adult_census)
