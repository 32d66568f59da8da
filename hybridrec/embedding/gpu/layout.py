"""The lines that kernels read about each feature, for blocks of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops import features as line
from hybridrec.ops.row_groups.triton import Sizes

MOST_NUMBERS = 2**31 - 1  # of an output or its gradient: places in it are int32


@dataclass(frozen=True, eq=False)
class Class:
    """Features whose tables have one dimension and type of rows: what one launch serves."""

    dim: int
    dtype: torch.dtype
    first: int  # of its lines
    last: int
    ones: int  # lines of pooled features with one id per bag, which come first
    pooled: int  # lines of pooled features, which come next
    begin: int  # of its lists of rows
    chunks: int  # of its chunks
    align: int  # 4 where numbers of the output can be read by four, else 1

    @property
    def width(self) -> int:
        """Columns of a program: a power of two."""
        return 1 << (self.dim - 1).bit_length()


@dataclass(frozen=True, eq=False)
class Layout:
    """A block's shape as kernels see it; nothing in it depends on the ids."""

    batch: int
    ids: int  # of the block, up to the last that is looked up
    width: int  # of the pooled output
    dims: tuple[int, ...]  # of each line
    ragged: bool  # whether some bags vary in size
    divides: bool  # whether some bags are divided by their size
    features: Tensor  # int64 [F, LENGTH], by class, pooled features first
    order: tuple[int, ...]  # the declared place of each line
    sequences: tuple[tuple[int, int, int], ...]  # line, ids and begin in the gradient of each, as declared
    classes: tuple[Class, ...]
    first_programs: Tensor  # int32 [F + 1]
    programs: int
    lists: Tensor  # int32 [classes, 2]
    most: int  # rows on a list
    chunks: int
    sizes: Sizes


@dataclass(frozen=True, eq=False)
class TableFacts:
    """What a line says of a feature's table."""

    number: int
    address: int
    rows: int
    base: int
    dim: int
    dtype: torch.dtype


def make_layout(
    specs: Sequence[FeatureSpec],
    tables: Sequence[TableFacts],
    starts: Sequence[int],
    counts: Sequence[int],
    hotness: Sequence[int | None],
    lines: Sequence[int],
    batch: int,
    device: torch.device,
    sizes: Sizes,
) -> Layout:
    """The layout for a block, given per feature its table, ids and hotness (None: ragged, with a line of offsets)."""
    kinds = sorted({(t.dim, str(t.dtype)) for t in tables})
    kind_of = [kinds.index((t.dim, str(t.dtype))) for t in tables]
    order = sorted(range(len(specs)), key=lambda f: (kind_of[f], specs[f].combiner == "none", hotness[f] != 1, f))
    columns, stride = _columns(specs, tables, counts, batch)
    matrix = np.zeros((len(specs), line.LENGTH.value), np.int64)
    for place, f in enumerate(order):
        table, sequence = tables[f], specs[f].combiner == "none"
        fixed = hotness[f]
        hot = 1 if sequence else -1 if fixed is None else fixed
        matrix[place] = (
            *(table.address, table.rows, table.base, table.number, kind_of[f], starts[f], counts[f], hot),
            *(lines[f], columns[f], table.dim if sequence else stride, line.COMBINERS[specs[f].combiner], f),
        )
    programs = np.concatenate([[0], np.cumsum(-(-matrix[:, line.COUNT.value] // sizes.ids))])
    classes, lists, most, chunks = _classes(kinds, matrix, order, specs, tables, sizes)
    ends = [place for place, f in enumerate(order) if specs[f].combiner == "none"]
    sequences = sorted(ends, key=lambda place: order[place])
    to = {"device": device, "non_blocking": True}
    return Layout(
        batch,
        max(start + count for start, count in zip(starts, counts, strict=True)),
        stride,
        tuple(tables[f].dim for f in order),
        bool((matrix[:, line.HOTNESS.value] < 0).any()),
        bool((matrix[:, line.COMBINER.value] > 0).any()),
        torch.from_numpy(matrix).to(**to),
        tuple(order),
        tuple((place, counts[order[place]], columns[order[place]]) for place in sequences),
        classes,
        torch.from_numpy(programs.astype(np.int32)).to(**to),
        int(programs[-1]),
        torch.from_numpy(np.array(lists, np.int32)).to(**to),
        most,
        chunks,
        sizes,
    )


def _columns(
    specs: Sequence[FeatureSpec], tables: Sequence[TableFacts], counts: Sequence[int], batch: int
) -> tuple[list[int], int]:
    """Where each feature's numbers begin: pooled ones side by side, sequences one after the other behind them all."""
    pooled = [0 if spec.combiner == "none" else table.dim for spec, table in zip(specs, tables, strict=True)]
    stride, behind, begin, columns = sum(pooled), sum(pooled) * batch, 0, []
    for spec, table, count, width in zip(specs, tables, counts, pooled, strict=True):
        columns.append(behind if spec.combiner == "none" else begin)
        begin += width
        behind += count * table.dim if spec.combiner == "none" else 0
    if behind > MOST_NUMBERS:
        raise ValueError(
            f"a batch of {batch} rows makes {behind} numbers of embeddings, and at most {MOST_NUMBERS} are possible on "
            "a GPU; take smaller batches, or spread the tables over several collections"
        )
    return columns, stride


def _classes(
    kinds: list[tuple[int, str]],
    matrix: np.ndarray,
    order: Sequence[int],
    specs: Sequence[FeatureSpec],
    tables: Sequence[TableFacts],
    sizes: Sizes,
) -> tuple[tuple[Class, ...], list[tuple[int, int]], int, int]:
    """The classes, where their lists and chunks begin, and the room for all of them."""
    made, lists, begin, chunks = [], [], 0, 0
    for kind, (dim, _) in enumerate(kinds):
        mine = np.flatnonzero(matrix[:, line.CLASS.value] == kind)
        first, last = int(mine[0]), int(mine[-1]) + 1
        pooled = sum(specs[order[place]].combiner != "none" for place in range(first, last))
        ones = int((matrix[mine][:pooled, line.HOTNESS.value] == 1).sum())
        places = np.concatenate([matrix[mine][:, line.COLUMN.value], matrix[mine][:, line.STRIDE.value], [dim]])
        dtype = tables[order[first]].dtype
        align = 1 if (places % 4).any() else 4
        made.append(Class(dim, dtype, first, last, ones, pooled, begin, chunks, align))
        lists.append((begin, chunks))
        ids = int(matrix[mine][:, line.COUNT.value].sum())
        begin += ids
        chunks += ids // (sizes.few + 1) + ids // sizes.chunk + 1  # for each row with many, and for full ones
    return tuple(made), lists, begin, chunks
