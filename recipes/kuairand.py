"""KuaiRand, a log of short videos: train on April, test on May. `python -m recipes.kuairand --help`

The log has user, video, tab and hour. Joined to it are what is known of users and videos, the videos that a user
watched before the log begins, and how those histories treat a video: how often it was watched, and watched long.
Settings were chosen on the last two days of April, training on the four before (`--check`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

if TYPE_CHECKING:
    from hybridrec.data import Dataset
    from hybridrec.models import Model

LABELS = ("is_click", "long_view", "is_like")
APRIL, MAY = "log_20220425_20220430.parquet", "log_20220501_20220508.parquet"
CHECK_FROM = 20220429  # the days from here on are held out of April to choose settings
COUNTS = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days", "duration_ms", "video_duration")
FEATURES = (
    *("user_id", "video_id", "tab", "hourmin", "duration_ms"),
    *("user_active_degree", "is_live_streamer", "is_video_author", "follow_user_num", "fans_user_num"),
    *("friend_user_num", "register_days", *(f"onehot_feat{i}" for i in range(18))),
    *("author_id", "video_type", "upload_dt", "upload_type", "video_duration", "music_type", "tag"),
    *("server_width", "server_height", "video_watched", "video_long_rate", "video_like_rate"),
    *("watch_seq", "long_watch_seq", "like_seq", "history_length", "user_long_rate", "user_like_rate"),
)
HISTORIES = {"watch_seq": "video_id", "long_watch_seq": "video_id", "like_seq": "video_id"}


@dataclass(frozen=True)
class Settings:
    """How to train; rows learn slowly, since most users and videos come a few times only."""

    model: str = "deepfm"
    labels: tuple[str, ...] = LABELS[:1]
    batch_size: int = 256
    epochs: int = 2
    lr: float = 2e-3
    row_lr: float = 0.005
    dim: int = 8
    dropout: float = 0.3
    label_weights: tuple[float, ...] | None = None

    def options(self) -> dict[str, Any]:
        """The arguments of the model."""
        own = {"din": {"history": HISTORIES, "attention": (16,)}, "mmoe": {"share": HISTORIES, "tower": ()}}
        return {"dim": self.dim, "dropout": self.dropout, **own.get(self.model, {"share": HISTORIES})}


def settings_for(model: str, labels: tuple[str, ...]) -> Settings:
    """What a check found best for the model."""
    chosen = Settings(model=model, labels=labels)
    if model == "din":
        return replace(chosen, lr=1e-3, row_lr=0.01)
    if labels == LABELS:  # few rows are liked: without more weight that label has no say in what is shared
        return replace(chosen, label_weights=(1.0, 1.0, 3.0))
    return chosen


def folder() -> Path:
    """Where the data lie: HYBRIDREC_DATA, else ../shared/data beside the project."""
    root = os.environ.get("HYBRIDREC_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(root) / "kuairand_pure_partial"


def dataset(log: str, settings: Settings) -> Dataset:
    """The rows of a log with everything joined."""
    import hybridrec as hr
    from hybridrec.data import Clip, Log1p

    ds = hr.data.parquet(folder() / log, label=list(settings.labels), batch_size=settings.batch_size)
    histories = pq.read_table(folder() / "user_history_sequences.parquet")
    ds = ds.join(whole_numbers(pq.read_table(folder() / "user_features.parquet")), on="user_id")
    ds = ds.join(whole_numbers(pq.read_table(folder() / "video_features_basic.parquet")), on="video_id")
    ds = ds.join(of_users(histories), on="user_id").join(of_videos(histories), on="video_id")
    schema = ds.schema.select(FEATURES)
    for name in COUNTS:
        schema = schema.edit(name, kind="dense", transforms=[Clip(0, None), Log1p()])
    return ds.with_schema(schema)


def whole_numbers(table: pa.Table) -> pa.Table:
    """Codes that were stored as floating-point numbers, as the integers that they are."""
    codes = [name for name in table.column_names if name.startswith("onehot") or name == "music_type"]
    for name in codes:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    return table


def of_users(histories: pa.Table) -> pa.Table:
    """The lists of each user, how long the history is, and the shares of it that were watched long and liked."""
    watched, long, liked = (_lengths(histories[name]) for name in ("watch_seq", "long_watch_seq", "like_seq"))
    return pa.table(
        {
            **{name: histories[name] for name in ("user_id", *HISTORIES)},
            "history_length": np.log1p(histories["history_len"].to_numpy()),
            "user_long_rate": _rate(long, watched, doubt=5),
            "user_like_rate": _rate(liked, watched, doubt=20),
        }
    )


def of_videos(histories: pa.Table) -> pa.Table:
    """How often the histories hold each video, and the shares of it that were watched long and liked."""
    ids = [
        histories[name].combine_chunks().flatten().to_numpy() for name in ("watch_seq", "long_watch_seq", "like_seq")
    ]
    watched, long, liked = (np.bincount(each, minlength=max(map(np.max, ids)) + 1) for each in ids)
    return pa.table(
        {
            "video_id": np.arange(len(watched)),
            "video_watched": np.log1p(watched),
            "video_long_rate": _rate(long, watched, doubt=10),
            "video_like_rate": _rate(liked, watched, doubt=50),
        }
    )


def _lengths(lists: pa.ChunkedArray) -> np.ndarray:
    return lists.combine_chunks().value_lengths().fill_null(0).to_numpy()


def _rate(part: np.ndarray, whole: np.ndarray, doubt: float) -> np.ndarray:
    """part / whole, drawn to the overall rate as if that had been seen `doubt` times."""
    return (part + doubt * part.sum() / whole.sum()) / (whole + doubt)


def split(settings: Settings, check: bool) -> tuple[Dataset, Dataset]:
    """What to train on, and what to test on: the months, or for a check the first and the last days of April."""
    if not check:
        return dataset(APRIL, settings), dataset(MAY, settings)
    return dataset(APRIL, settings).split(CHECK_FROM, by="date")


def train(ds: Dataset, settings: Settings, seed: int = 0) -> Model:
    """A model trained with rates that fall to 0 in a line."""
    import torch

    import hybridrec as hr
    from hybridrec.models import build
    from recipes.plain_loop import falling, fit

    torch.manual_seed(seed)
    model = build(settings.model, ds.schema, seed=seed, **settings.options())
    model.set_base_rates(base_rates(ds))
    dense = torch.optim.Adam(model.parameters(), lr=settings.lr)
    rows = hr.optim.Adagrad(model, lr=settings.row_lr)
    steps = settings.epochs * len(ds)
    schedules = [falling(optimizer, steps) for optimizer in (dense, rows)]
    fit(model, ds.shuffle(seed=seed, rows="all"), (dense, rows), settings.epochs, schedules, settings.label_weights)
    return model


def base_rates(ds: Dataset) -> list[float]:
    """The share of positives of each label."""
    import torch

    labels = torch.cat([batch.label.view(len(batch), -1) for batch in ds if batch.label is not None])
    return labels.mean(0).tolist()


def aucs(model: Model, ds: Dataset) -> dict[str, float]:
    """The AUC of each label."""
    from sklearn.metrics import roc_auc_score

    from recipes.plain_loop import predict

    labels, scores = (part.view(len(part), -1).T.numpy() for part in predict(model, ds.batch(8192)))
    return {name: float(roc_auc_score(*pair)) for name, *pair in zip(model.labels, labels, scores, strict=True)}


def kuairand(
    model: Annotated[str, typer.Option(help="din, deepfm, mmoe, or another that needs no option.")] = "din",
    label: Annotated[list[str], typer.Option(help="Labels; several for mmoe.")] = list(LABELS[:1]),  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with the seeds 0, 1, ...")] = 3,
    check: Annotated[bool, typer.Option(help="Test on the last days of April.")] = False,
) -> None:
    """Train on April and print the AUC on May."""
    settings = settings_for(model, tuple(label))
    before, after = split(settings, check)
    found = []
    for seed in range(seeds):
        found.append(aucs(train(before, settings, seed), after))
        typer.echo(f"seed {seed}: " + ", ".join(f"{name} {auc:.4f}" for name, auc in found[-1].items()))
    typer.echo("mean:   " + ", ".join(f"{name} {np.mean([each[name] for each in found]):.4f}" for name in found[0]))


if __name__ == "__main__":
    typer.run(kuairand)
