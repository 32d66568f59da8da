"""Run directories that look like real ones, drawn from a seed."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

TABLES = {
    "user_id": (1_000_000, 16, 0.94),
    "video_id": (4_300_000, 16, 0.88),
    "author_id": (900_000, 16, 0.97),
    "tag": (69, 8, 1.0),
    "music_id": (2_100_000, 16, 0.91),
    "tab": (15, 8, 1.0),
    "hour": (24, 4, 1.0),
}
START = 1_760_000_000.0


def write_run(folder: Path, labels: tuple[str, ...] = ("click",), records: int = 200, valid_every: int = 10) -> Path:
    """A whole run directory: `records` training records, a validation after every `valid_every`, and a final one."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = run_records(labels, records, valid_every)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, content in (
        ("config", CONFIG),
        ("schema", schema(labels)),
        ("plan", plan()),
        ("environment", ENVIRONMENT),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def run_records(labels: tuple[str, ...], records: int, valid_every: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    made: list[dict[str, Any]] = []
    for i in range(1, records + 1):
        step, progress = 50 * i, i / records
        made.append(train_record(draw, labels, step, progress))
        if i % valid_every == 0 or i == records:
            made.append(valid_record(draw, "valid", labels, step, progress))
    made.append(valid_record(draw, "final", labels, 50 * records, 1.0))
    return made


def train_record(draw: random.Random, labels: tuple[str, ...], step: int, progress: float) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "train", "step": step, "epoch": int(3 * progress * 0.999)}
    record |= {"time": START + 0.034 * step, "samples_per_s": 240_000 * draw.gauss(1, 0.04)}
    record |= {"wait_share": abs(draw.gauss(0.03, 0.01)), "lr": 1e-3 * (1 - progress), "row_lr": 0.05}
    seconds = {"data": 0.001, "forward": 0.0124, "backward": 0.011, "step": 0.0082, "metrics": 0.0006, "other": 0.0003}
    record["stages"] = {name: value * draw.gauss(1, 0.05) for name, value in seconds.items()}
    record["tables"] = {name: table_record(name, progress) for name in TABLES}
    return record | metrics(draw, labels, progress, noise=0.012, ahead=0.004)


def valid_record(draw: random.Random, kind: str, labels: tuple[str, ...], step: int, progress: float) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": kind, "step": step, "epoch": int(3 * progress * 0.999)}
    record["time"] = START + 0.034 * step + 2
    record["tables"] = {
        name: table_record(name, progress) | {"norm": 0.2 + 0.5 * progress * draw.uniform(0.9, 1.1)} for name in TABLES
    }
    record["calibration_curve"] = {label: curve(draw, 0.45 / (i + 1)) for i, label in enumerate(labels)}
    # validation turns after a while, as it does for models that see the data again
    return record | metrics(draw, labels, progress, noise=0.0015, ahead=-0.004 - 0.012 * max(0.0, progress - 0.6))


def metrics(
    draw: random.Random, labels: tuple[str, ...], progress: float, noise: float, ahead: float
) -> dict[str, Any]:
    made: dict[str, Any] = {"loss": 0.0}
    for i, label in enumerate(labels):
        prefix = f"{label}/" if len(labels) > 1 else ""
        learned = 1 - math.exp(-7 * progress)
        auc = 0.56 + (0.19 + 0.03 * i) * learned + ahead + draw.gauss(0, noise)
        loss = 0.69 / (i + 1) - 0.13 / (i + 1) * learned - ahead + draw.gauss(0, noise)
        made |= {f"{prefix}auc": auc, f"{prefix}logloss": loss, f"{prefix}ne": loss / (0.69 / (i + 1))}
        made[f"{prefix}calibration"] = 1 + 0.2 * (1 - learned) * draw.gauss(0, 1) + draw.gauss(0, noise)
        made["loss"] += loss
    return made


def curve(draw: random.Random, top: float) -> dict[str, list[float]]:
    edges = [i / 20 for i in range(21)]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    counts = [int(200_000 * math.exp(-(((m - top) / 0.22) ** 2)) * draw.uniform(0.9, 1.1)) for m in middles]
    observed = [
        m + 0.06 * m * (1 - m) + draw.gauss(0, 0.5 / math.sqrt(n + 1)) for m, n in zip(middles, counts, strict=True)
    ]
    observed = [min(1.0, max(0.0, share)) for share in observed]
    return {"edges": edges, "predicted": middles, "observed": observed, "count": counts}


def table_record(name: str, progress: float) -> dict[str, Any]:
    rows, dim, hits = TABLES[name]
    seen = rows if rows < 100 else int(rows * (1 - math.exp(-3 * progress)))
    hit_rate = hits if rows < 100 else hits * (1 - 0.6 * math.exp(-6 * progress))
    made = {"rows": seen, "bytes": seen * (8 * dim + 24)}
    return made if rows < 100 else made | {"hit_rate": hit_rate, "evicted": 0}


def plan() -> dict[str, Any]:
    made = {}
    for name, (rows, dim, _) in TABLES.items():
        store = "DenseStore" if rows < 100 else "HashStore"
        capacity = None if rows < 100 else 2**24
        features = [name, "history"] if name == "video_id" else [name]
        made[name] = {"store": store, "rows": rows, "capacity": capacity, "dim": dim, "dtype": "float32"}
        made[name] |= {"features": features, "bytes": (capacity or rows) * 4 * dim}
    return {"tables": made}


def schema(labels: tuple[str, ...]) -> dict[str, Any]:
    features = [{"name": name, "kind": "id", "type": "int64", "null": "id"} for name in TABLES]
    features += [{"name": "history", "kind": "id", "type": {"list": "int64"}, "null": "empty"}]
    features += [{"name": f"dense_{i}", "kind": "dense", "type": "float", "null": "default"} for i in range(4)]
    features += [{"name": label, "kind": "label", "type": "int8", "null": "error"} for label in labels]
    return {"version": 1, "features": features}


CONFIG = {
    "model": {"name": "deepfm", "class": "hybridrec.models.deepfm.DeepFM", "config": {"dim": 16, "hidden": [64, 32]}},
    "loss": "bce",
    "metrics": ["auc", "logloss", "ne", "calibration"],
    "optimizer": {"class": "Adam", "lr": 0.001},
    "row_optimizer": {"class": "RowWiseAdagrad", "lr": 0.05},
    "train": {"epochs": 3, "seed": 0, "clip_norm": None, "log_every": 50, "data": "log_april.parquet"},
}
ENVIRONMENT = {
    "hybridrec": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "cpu": "AMD EPYC 9654, 2 cores",
    "threads": 2,
    "native": {"instruction_set": "avx512"},
}
