"""The lines that kernels read about each feature, for blocks of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.columns import Columns, side_by_side
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops import features as line
from hybridrec.ops.room import aligned_width
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
    pooled: int  # lines of pooled features, those with one id among them; max is not
    maxima: tuple[int, int]  # its lines of features pooled by max, first and last of those of all classes
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
    width: int  # of the pooled output, in which others may have columns too
    stride: int  # from a row of it to the next
    columns: tuple[int, ...]  # where those of each feature begin in it, as declared
    dims: tuple[int, ...]  # of each line
    ragged: bool  # whether some bags vary in size
    divides: bool  # whether some bags are divided by their size
    grouped: bool  # whether some ids stand for one with others
    hashed: bool  # whether some ids outside their table have a row by their hash
    features: Tensor  # int64 [F, LENGTH], by class, pooled features first, then those of max, then sequences
    maxima: Tensor  # int64 [M, LENGTH]: lines of max as it pools; in `features` it has a gradient for each id
    winners: int  # numbers that max keeps
    occurrences: int  # numbers of the gradients of the ids of max
    largest: dict[int, tuple[int, int]]  # by line of `features`: begin and end of those of a feature of max
    order: tuple[int, ...]  # the declared place of each line
    sequences: tuple[tuple[int, int, int], ...]  # line, rows and begin in the gradient of each, as declared
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
    hashed: bool = False  # whether ids outside it have a row by their hash


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
    columns: Columns | None = None,
    room: int | None = None,
) -> Layout:
    """The layout for a block, given per feature its table, ids and hotness (None: ragged, with a line of offsets).

    Pooled features are side by side, unless their `columns` are given. With `room`, rows of the output have that many
    columns behind the vectors, and more up to what layers like.
    """
    pooled = columns or side_by_side(specs, [table.dim for table in tables])
    stride = pooled.width if room is None else aligned_width(pooled.width + room)
    sizes = sizes.fitting(max(counts, default=0))
    kinds = sorted({(t.dim, str(t.dtype)) for t in tables})
    kind_of = [kinds.index((t.dim, str(t.dtype))) for t in tables]
    order = sorted(range(len(specs)), key=lambda f: (kind_of[f], _part(specs[f]), hotness[f] != 1, f))
    begins, behind = _begins(pooled, counts, stride * batch, batch)
    matrix = np.zeros((len(specs), line.LENGTH.value), np.int64)
    for place, f in enumerate(order):
        table, spec, fixed = tables[f], specs[f], hotness[f]
        sequence = spec.combiner == "none"
        hot = spec.group if sequence else -1 if fixed is None else fixed
        matrix[place] = (
            *(table.address, table.rows, table.base, table.number, kind_of[f], starts[f], counts[f], hot),
            *(lines[f], begins[f], table.dim if sequence else stride, line.COMBINERS[spec.combiner], f),
            *(spec.group, table.hashed, 0, 0),
        )
    largest = [place for place, f in enumerate(order) if specs[f].combiner == "max"]
    maxima, winners, occurrences = _maxima(matrix, largest, [tables[order[p]].dim for p in largest], batch, behind)
    programs = np.concatenate([[0], np.cumsum(-(-matrix[:, line.COUNT.value] // sizes.ids))])
    parts, types = [_part(specs[f]) for f in order], [tables[f].dtype for f in order]
    classes, lists, most, chunks = _classes(kinds, matrix, maxima, parts, types, sizes)
    ends = [place for place, f in enumerate(order) if specs[f].combiner == "none"]
    sequences = sorted(ends, key=lambda place: order[place])
    to = {"device": device, "non_blocking": True}
    return Layout(
        batch=batch,
        ids=max((start + count for start, count in zip(starts, counts, strict=True)), default=0),
        width=pooled.width,
        stride=stride,
        columns=pooled.begins,
        dims=tuple(tables[f].dim for f in order),
        ragged=bool((matrix[:, line.HOTNESS.value] < 0).any()),
        divides=bool((matrix[:, line.COMBINER.value] > 0).any()),
        grouped=any(spec.group > 1 for spec in specs),
        hashed=any(table.hashed for table in tables),
        features=torch.from_numpy(matrix).to(**to),
        maxima=torch.from_numpy(maxima).to(**to),
        winners=winners,
        occurrences=occurrences,
        largest={place: _numbers_of_ids(matrix[place]) for place in largest},
        order=tuple(order),
        sequences=tuple((p, counts[order[p]] // specs[order[p]].group, begins[order[p]]) for p in sequences),
        classes=classes,
        first_programs=torch.from_numpy(programs.astype(np.int32)).to(**to),
        programs=int(programs[-1]),
        lists=torch.from_numpy(np.array(lists, np.int32)).to(**to),
        most=most,
        chunks=chunks,
        sizes=sizes,
    )


def _numbers_of_ids(of_max: np.ndarray) -> tuple[int, int]:
    """Begin and end of the gradients of the ids of a feature of max, whose stride is by now its dimension."""
    begin, count, dim = (int(of_max[at.value]) for at in (line.OCCURRENCES, line.COUNT, line.STRIDE))
    return begin, begin + count * dim


def _part(spec: FeatureSpec) -> int:
    """Where a feature stands among those of its class: pooled by sums, by max, or not."""
    return {"max": 1, "none": 2}.get(spec.combiner, 0)


def _begins(pooled: Columns, counts: Sequence[int], behind: int, batch: int) -> tuple[list[int], int]:
    """Where each feature's numbers begin: pooled ones in their columns, sequences one after the other `behind` them.

    Then where the gradients of the ids of max begin, behind the sequences.
    """
    specs, dims, begins = pooled.features, pooled.dims, []
    for spec, dim, count, begin in zip(specs, dims, counts, pooled.begins, strict=True):
        begins.append(behind if spec.combiner == "none" else begin)
        behind += count // spec.group * dim if spec.combiner == "none" else 0
    ids_of_max = sum(dim * n for dim, n, spec in zip(dims, counts, specs, strict=True) if spec.combiner == "max")
    if (numbers := behind + ids_of_max) > MOST_NUMBERS:
        raise ValueError(
            f"a batch of {batch} rows makes {numbers} numbers of embeddings, and at most {MOST_NUMBERS} are "
            "possible on a GPU; take smaller batches, or spread the tables over several collections"
        )
    return begins, behind


def _maxima(
    matrix: np.ndarray, places: list[int], dims: list[int], batch: int, behind: int
) -> tuple[np.ndarray, int, int]:
    """The lines of features pooled by max, and the numbers of their winners and of the gradients of their ids.

    Their lines in the matrix become those of sequences, whose every id has its own gradient.
    """
    winners = occurrences = 0
    for place, dim in zip(places, dims, strict=True):
        matrix[place, line.WINNERS.value], matrix[place, line.OCCURRENCES.value] = winners, occurrences
        winners, occurrences = winners + batch * dim, occurrences + int(matrix[place, line.COUNT.value]) * dim
    maxima = matrix[places]
    for place, dim in zip(places, dims, strict=True):
        matrix[place, line.COLUMN.value] = behind + matrix[place, line.OCCURRENCES.value]
        matrix[place, line.STRIDE.value], matrix[place, line.HOTNESS.value] = dim, 1
    return maxima, winners, occurrences


def _classes(
    kinds: list[tuple[int, str]],
    matrix: np.ndarray,
    maxima: np.ndarray,
    parts: list[int],
    types: list[torch.dtype],
    sizes: Sizes,
) -> tuple[tuple[Class, ...], list[tuple[int, int]], int, int]:
    """The classes, where their lists and chunks begin, and the room for all of them."""
    made, lists, begin, chunks = [], [], 0, 0
    for kind, (dim, _) in enumerate(kinds):
        mine = np.flatnonzero(matrix[:, line.CLASS.value] == kind)
        first, last = int(mine[0]), int(mine[-1]) + 1
        pooled = parts[first:last].count(0)
        ones = int((matrix[mine][:pooled, line.HOTNESS.value] == 1).sum())
        largest = np.searchsorted(maxima[:, line.CLASS.value], [kind, kind + 1]).tolist()
        all_lines = np.concatenate([matrix[mine], maxima[slice(*largest)]])
        places = all_lines[:, [at.value for at in (line.COLUMN, line.STRIDE, line.WINNERS, line.OCCURRENCES)]]
        align = 1 if dim % 4 or (places % 4).any() else 4
        made.append(Class(dim, types[first], first, last, ones, pooled, tuple(largest), begin, chunks, align))
        lists.append((begin, chunks))
        ids = int(matrix[mine][:, line.COUNT.value].sum())
        begin += ids
        chunks += ids // (sizes.few + 1) + ids // sizes.chunk + 1  # for each row with many, and for full ones
    return tuple(made), lists, begin, chunks
