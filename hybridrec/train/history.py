"""The records of a run, in order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class History(Sequence[Record]):
    """What `fit` returns, and what metrics.jsonl holds: a dict per record.

    >>> history = History([{"kind": "train", "step": 1, "loss": 0.7}, {"kind": "valid", "step": 1, "auc": 0.6}])
    >>> history.valid, history.values("auc")
    ([{'kind': 'valid', 'step': 1, 'auc': 0.6}], [0.6])
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = list(records)

    @property
    def train(self) -> list[Record]:
        return self.of("train")

    @property
    def valid(self) -> list[Record]:
        return self.of("valid")

    @property
    def final(self) -> Record | None:
        """The last record of a fit that came to its end."""
        found = self.of("final")
        return found[-1] if found else None

    def of(self, kind: str) -> list[Record]:
        """The records of a kind: train, valid, final."""
        return [record for record in self.records if record["kind"] == kind]

    def values(self, name: str, kind: str = "valid") -> list[Any]:
        """One number over the records of a kind."""
        return [record[name] for record in self.of(kind) if name in record]

    def __getitem__(self, at: Any) -> Any:
        return self.records[at]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        lines = [f"History of {len(self)} records"]
        for record in self.valid:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in numbers(record).items())
            lines.append(f"  step {record['step']:,}: {shown}")
        return "\n".join(lines)


def numbers(record: Record) -> dict[str, float]:
    """The metrics of a record: its plain numbers, less those that tell where and how fast.

    >>> numbers({"kind": "valid", "step": 1, "epoch": 0, "time": 2.5, "auc": 0.75})
    {'auc': 0.75}
    """
    told = ("time", "samples_per_s", "steps_per_s", "wait_share", "seconds", "lr", "row_lr")
    return {name: value for name, value in record.items() if isinstance(value, float) and name not in told}


def read(path: Path) -> list[Record]:
    """The records of a metrics.jsonl; a last line that was cut short is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def line_of(record: Record) -> str:
    """A record as a line of JSON, which knows no NaN: it becomes null.

    >>> line_of({"kind": "train", "auc": math.nan})
    '{"kind": "train", "auc": null}'
    """
    return json.dumps(_plain(record), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
