"""The models of `embedding_gpu.py` and `tiers_gpu.py`, and their batches.

Tiny, Small and Medium are the public synthetic models of NVIDIA's distributed-embeddings; "criteo" is 26 tables of a
million rows of 128. A table with several hotnesses is shared by as many features. Ids follow a power law of exponent
1.05 and are drawn on the device: the same seed gives both sides the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

ALPHA = 1.05
LARGE = 1_000_000  # rows of a table that may have a cache: of smaller ones a batch has nearly all
# Rows per table of the MLPerf benchmark on Criteo 1 TB, capped at 40 M: 97 GiB of float32 rows of 128.
CRITEO_1TB = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10)
CRITEO_1TB += (2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36)


@dataclass(frozen=True)
class Tables:
    """`count` tables of one kind, each with a feature per hotness."""

    count: int
    hotness: tuple[int, ...]
    rows: int
    dim: int


@dataclass(frozen=True)
class Shape:
    """Tables, the layers above them, and dense numbers; `stride` is the window of averages over vectors.

    With layers for the numbers alone, the `bottom`, it is a DLRM: `hidden` are then those above the dots of vectors.
    """

    groups: tuple[Tables, ...]
    hidden: tuple[int, ...]
    numbers: int
    stride: int = 1
    half: bool = False  # float16 rows
    rowwise: bool = False  # row-wise Adagrad
    bottom: tuple[int, ...] = ()

    @property
    def tables(self) -> list[tuple[int, int]]:
        """Rows and columns of every table."""
        return [(group.rows, group.dim) for group in self.groups for _ in range(group.count)]

    @property
    def features(self) -> list[tuple[int, int]]:
        """Table and hotness of every feature, in the order of tables."""
        hotness = [group.hotness for group in self.groups for _ in range(group.count)]
        return [(table, hot) for table, each in enumerate(hotness) for hot in each]

    @property
    def width(self) -> int:
        """Columns of all pooled features together."""
        tables = self.tables
        return sum(tables[table][1] for table, _ in self.features)

    @property
    def ids(self) -> int:
        """Ids of a sample."""
        return sum(hot for _, hot in self.features)

    def capped(self, rows: int) -> Shape:
        """The same with small tables and few of each kind."""
        small = [replace(g, count=min(g.count, 2), rows=min(g.rows, rows)) for g in self.groups]
        return replace(self, groups=tuple(small), hidden=self.hidden[-1:], bottom=self.bottom[-1:])


SHAPES = {
    "tiny": Shape(
        (
            Tables(1, (1, 10), 10_000, 8),
            Tables(1, (1, 10), 1_000_000, 16),
            Tables(1, (1, 10), 25_000_000, 16),
            Tables(1, (1,), 25_000_000, 16),
            Tables(16, (1,), 10, 8),
            Tables(10, (1,), 1_000, 8),
            Tables(4, (1,), 10_000, 8),
            Tables(2, (1,), 100_000, 16),
            Tables(19, (1,), 1_000_000, 16),
        ),
        hidden=(256, 128),
        numbers=10,
    ),
    "small": Shape(
        (
            Tables(5, (1, 30), 10_000, 16),
            Tables(3, (1, 30), 4_000_000, 32),
            Tables(1, (1, 30), 50_000_000, 32),
            Tables(1, (1,), 50_000_000, 32),
            Tables(30, (1,), 10, 16),
            Tables(30, (1,), 1_000, 16),
            Tables(5, (1,), 10_000, 16),
            Tables(5, (1,), 100_000, 32),
            Tables(27, (1,), 4_000_000, 32),
        ),
        hidden=(512, 256, 128),
        numbers=10,
    ),
    "criteo": Shape((Tables(26, (1,), 1_000_000, 128),), hidden=(512, 256, 128), numbers=13),
    "medium": Shape(
        (
            Tables(20, (1, 50), 100_000, 64),
            Tables(5, (1, 50), 10_000_000, 64),
            Tables(1, (1, 50), 100_000_000, 128),
            Tables(1, (1,), 100_000_000, 128),
            Tables(80, (1,), 10, 32),
            Tables(60, (1,), 1_000, 32),
            Tables(80, (1,), 100_000, 64),
            Tables(24, (1,), 200_000, 64),
            Tables(40, (1,), 10_000_000, 64),
        ),
        hidden=(1024, 512, 256, 128),
        numbers=25,
        stride=7,
        half=True,
        rowwise=True,
    ),
}


def shape_of(model: str, most_rows: int | None = None) -> Shape:
    """A shape by name, its tables capped where a number is given."""
    return SHAPES[model] if most_rows is None else SHAPES[model].capped(most_rows)


@dataclass(frozen=True)
class Sample:
    """A batch: ids [N] feature after feature, each [B, hotness] row by row; dense [B, n]; labels [B]."""

    ids: Tensor
    dense: Tensor
    label: Tensor


def power_law(count: int, rows: int, generator: torch.Generator) -> Tensor:
    """Ids in [0, rows) with P(k) ~ (k + 1)^-ALPHA, by inverting its integral. int64 [count]"""
    power = 1 - ALPHA
    draws = torch.rand(count, device=generator.device, dtype=torch.float64, generator=generator)
    ranks = (1 + draws * ((rows + 1) ** power - 1)) ** (1 / power)
    return (ranks.long() - 1).clamp_(0, rows - 1)


def sample(shape: Shape, rows: int, number: int, device: torch.device | str) -> Sample:
    """Batch `number` of `rows` rows: the same whoever asks, on the same kind of device."""
    generator = torch.Generator(device).manual_seed(number)
    ids = [power_law(rows * hot, shape.tables[table][0], generator) for table, hot in shape.features]
    dense = 100 * torch.rand(rows, shape.numbers, device=device, generator=generator)
    label = torch.randint(0, 2, (rows,), device=device, generator=generator)
    return Sample(torch.cat(ids), dense, label.float())


def averaged(vectors: Tensor, stride: int) -> Tensor:
    """Means of `stride` neighbouring columns, the last of what is left: [B, W] to [B, ceil(W / stride)]."""
    if stride == 1:
        return vectors
    return F.avg_pool1d(vectors[:, None], stride, ceil_mode=True, count_include_pad=False)[:, 0]


def floor_bytes(shape: Shape, rows: int, ids: Tensor) -> dict[str, int]:
    """The bytes that an exact step must move: each distinct row once, every id, output and its gradient.

    The forward reads rows and ids and writes the output; the backward reads ids and the gradient of the output, and
    reads and writes rows with the state of Adagrad: as many numbers again, or one float per row.
    """
    number, forward, backward, distinct = 2 if shape.half else 4, 0, 0, 0
    found: dict[int, list[Tensor]] = {}
    parts = ids.split([rows * hot for _, hot in shape.features])
    for (table, hot), part in zip(shape.features, parts, strict=True):
        found.setdefault(table, []).append(part)
        moved = rows * (4 * shape.tables[table][1] + 8 * hot)
        forward, backward = forward + moved, backward + moved
    for table, each in found.items():
        unique, dim = torch.cat(each).unique().numel(), shape.tables[table][1]
        distinct += unique
        forward += unique * dim * number
        backward += 2 * unique * (dim * number + (4 if shape.rowwise else dim * number))
    return {"ids": ids.numel(), "distinct": distinct, "fwd": forward, "fwd_bwd": forward + backward}
