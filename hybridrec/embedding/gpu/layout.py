"""The lines that kernels read about each feature, for blocks of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.columns import Columns, side_by_side
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.features import COMBINERS
from hybridrec.ops.features import of as line
from hybridrec.ops.room import aligned_width
from hybridrec.ops.row_groups.triton import Sizes

SUMS, MAX, SEQUENCE = range(3)  # how a feature is pooled
MOST_LAYOUTS = 64  # that are kept
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

    def sums(self, number: int) -> int:
        """Numbers for the sums of chunks of a class: those of its dimension for each."""
        ends = [*(each.chunks for each in self.classes[1:]), self.chunks]
        return (ends[number] - self.classes[number].chunks) * self.classes[number].dim


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


class Shapes:
    """Layouts of blocks whose features have the same hotness (None: ragged, with a line of offsets) and batch size.

    What differs between them is given to `layout`: the ids of each feature, and where rows lie if that is not always
    the same. Pooled features are side by side, unless their `columns` are given. With `room`, rows of the output have
    that many columns behind the vectors, and more up to what layers like.
    """

    def __init__(
        self,
        specs: Sequence[FeatureSpec],
        tables: Sequence[TableFacts],
        hotness: Sequence[int | None],
        lines: Sequence[int],
        batch: int,
        device: torch.device,
        sizes: Sizes,
        columns: Columns | None = None,
        room: int | None = None,
    ) -> None:
        self._batch, self._device, self._sizes = batch, device, sizes
        self._pooled = columns or side_by_side(specs, [table.dim for table in tables])
        width = self._pooled.width
        self._stride = width if room is None else aligned_width(width + room)
        self._kinds = sorted({(t.dim, str(t.dtype)) for t in tables})
        kind_of = [self._kinds.index((t.dim, str(t.dtype))) for t in tables]
        order = sorted(range(len(specs)), key=lambda f: (kind_of[f], _part(specs[f]), hotness[f] != 1, f))
        self._order, self._types = np.array(order, np.int64), [tables[f].dtype for f in order]
        self._dims = np.array([table.dim for table in tables], np.int64)
        self._groups = np.array([spec.group for spec in specs], np.int64)
        self._parts = np.array([_part(spec) for spec in specs], np.int64)
        self._lines = np.zeros((len(specs), line.LENGTH), np.int64)
        for place, f in enumerate(order):
            table, spec, fixed = tables[f], specs[f], hotness[f]
            sequence = spec.combiner == "none"
            hot = spec.group if sequence else -1 if fixed is None else fixed
            self._lines[place] = (
                *(table.address, table.rows, table.base, table.number, kind_of[f], 0, 0, hot),
                *(lines[f], 0, table.dim if sequence else self._stride, COMBINERS[spec.combiner], f),
                *(spec.group, table.hashed, 0, 0),
            )
        self._made: dict[tuple[int, ...], tuple[Layout, np.ndarray, np.ndarray]] = {}
        self._largest = np.flatnonzero(self._parts[self._order] == MAX).tolist()
        self._sequences = sorted(np.flatnonzero(self._parts[self._order] == SEQUENCE).tolist(), key=order.__getitem__)
        self._grouped, self._hashed = bool((self._groups > 1).any()), any(table.hashed for table in tables)

    def layout(self, starts: Sequence[int], counts: Sequence[int], rows: np.ndarray | None = None) -> Layout:
        """That of a block, given where the ids of each feature start and how many there are.

        `rows` int64 [F, 3] are addresses, sizes and bases of tables, where they are others than at first.
        """
        kind = *starts, *counts
        found = self._made.get(kind)
        if found is None:
            if len(self._made) >= MOST_LAYOUTS:  # ragged blocks are all different
                self._made.clear()
            found = self._made[kind] = self._make(starts, counts)
        return found[0] if rows is None else self._over(*found, rows)

    def _over(self, layout: Layout, matrix: np.ndarray, maxima: np.ndarray, rows: np.ndarray) -> Layout:
        """The same for tables that lie elsewhere."""
        matrix, maxima, places = matrix.copy(), maxima.copy(), [line.ROWS, line.SIZE, line.BASE]
        matrix[:, places] = rows[self._order]
        maxima[:, places] = matrix[self._largest][:, places]
        features, of_max = _sent([matrix, maxima], self._device)
        return replace(layout, features=features, maxima=of_max)

    def _make(self, starts: Sequence[int], counts: Sequence[int]) -> tuple[Layout, np.ndarray, np.ndarray]:
        """A layout, and its lines on the host."""
        count, order = np.array(counts, np.int64), self._order
        sizes, matrix = self._sizes.fitting(int(count.max(initial=0))), self._lines.copy()
        matrix[:, line.START], matrix[:, line.COUNT] = np.array(starts, np.int64)[order], count[order]
        begins, behind = self._begins(count)
        matrix[:, line.COLUMN] = begins[order]
        dims = self._dims[order].tolist()
        maxima, winners, occurrences = _maxima(
            matrix, self._largest, [dims[place] for place in self._largest], self._batch, behind
        )
        programs = np.concatenate([[0], np.cumsum(-(-matrix[:, line.COUNT] // sizes.ids))])
        parts = self._parts[order].tolist()
        classes, lists, most, chunks = _classes(self._kinds, matrix, maxima, parts, self._types, sizes)
        there = _sent([matrix, maxima, programs.astype(np.int32), np.array(lists, np.int32)], self._device)
        of_sequences = order[self._sequences]
        vectors, firsts = (each[of_sequences].tolist() for each in (count // self._groups, begins))
        made = Layout(
            batch=self._batch,
            ids=max((start + n for start, n in zip(starts, counts, strict=True)), default=0),
            width=self._pooled.width,
            stride=self._stride,
            columns=self._pooled.begins,
            dims=tuple(dims),
            ragged=bool((matrix[:, line.HOTNESS] < 0).any()),
            divides=bool((matrix[:, line.COMBINER] > 0).any()),
            grouped=self._grouped,
            hashed=self._hashed,
            features=there[0],
            maxima=there[1],
            winners=winners,
            occurrences=occurrences,
            largest={place: _numbers_of_ids(matrix[place]) for place in self._largest},
            order=tuple(order.tolist()),
            sequences=tuple(zip(self._sequences, vectors, firsts, strict=True)),
            classes=classes,
            first_programs=there[2],
            programs=int(programs[-1]),
            lists=there[3],
            most=most,
            chunks=chunks,
            sizes=sizes,
        )
        return made, matrix, maxima

    def _begins(self, counts: np.ndarray) -> tuple[np.ndarray, int]:
        """Where each feature's numbers begin: pooled ones in their columns, sequences one after the other behind them.

        Then where the gradients of the ids of max begin, behind the sequences.
        """
        sequences = self._parts == SEQUENCE
        sizes = np.where(sequences, counts // self._groups * self._dims, 0)
        first = self._stride * self._batch
        begins = np.where(sequences, first + np.cumsum(sizes) - sizes, np.array(self._pooled.begins, np.int64))
        behind = first + int(sizes.sum())
        if (numbers := behind + int((counts * self._dims)[self._parts == MAX].sum())) > MOST_NUMBERS:
            raise ValueError(
                f"a batch of {self._batch} rows makes {numbers} numbers of embeddings, and at most {MOST_NUMBERS} are "
                "possible on a GPU; take smaller batches, or spread the tables over several collections"
            )
        return begins, behind


def _sent(parts: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of int64 and int32 on the device by one copy; each begins at a multiple of 16 bytes."""
    sizes = [-(-part.nbytes // 16) * 2 for part in parts]  # in numbers of 8 bytes
    joined = np.zeros(sum(sizes), np.int64)
    for part, at in zip(parts, np.cumsum(sizes) - sizes, strict=True):
        joined[at : at + -(-part.nbytes // 8)].view(part.dtype)[: part.size] = part.ravel()
    there = torch.from_numpy(joined).to(device, non_blocking=True).split(sizes)
    kinds = [torch.int64 if part.dtype == np.int64 else torch.int32 for part in parts]
    return [each.view(kind)[: part.size].view(part.shape) for each, kind, part in zip(there, kinds, parts, strict=True)]


def _numbers_of_ids(of_max: np.ndarray) -> tuple[int, int]:
    """Begin and end of the gradients of the ids of a feature of max, whose stride is by now its dimension."""
    begin, count, dim = (int(of_max[at]) for at in (line.OCCURRENCES, line.COUNT, line.STRIDE))
    return begin, begin + count * dim


def _part(spec: FeatureSpec) -> int:
    """Where a feature stands among those of its class: pooled by sums, by max, or not."""
    return {"max": MAX, "none": SEQUENCE}.get(spec.combiner, SUMS)


def _maxima(
    matrix: np.ndarray, places: list[int], dims: list[int], batch: int, behind: int
) -> tuple[np.ndarray, int, int]:
    """The lines of features pooled by max, and the numbers of their winners and of the gradients of their ids.

    Their lines in the matrix become those of sequences, whose every id has its own gradient.
    """
    winners = occurrences = 0
    for place, dim in zip(places, dims, strict=True):
        matrix[place, line.WINNERS], matrix[place, line.OCCURRENCES] = winners, occurrences
        winners, occurrences = winners + batch * dim, occurrences + int(matrix[place, line.COUNT]) * dim
    maxima = matrix[places]
    for place, dim in zip(places, dims, strict=True):
        matrix[place, line.COLUMN] = behind + matrix[place, line.OCCURRENCES]
        matrix[place, line.STRIDE], matrix[place, line.HOTNESS] = dim, 1
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
        mine = np.flatnonzero(matrix[:, line.CLASS] == kind)
        first, last = int(mine[0]), int(mine[-1]) + 1
        pooled = parts[first:last].count(0)
        ones = int((matrix[mine][:pooled, line.HOTNESS] == 1).sum())
        largest = np.searchsorted(maxima[:, line.CLASS], [kind, kind + 1]).tolist()
        all_lines = np.concatenate([matrix[mine], maxima[slice(*largest)]])
        places = all_lines[:, [line.COLUMN, line.STRIDE, line.WINNERS, line.OCCURRENCES]]
        align = 1 if dim % 4 or (places % 4).any() else 4
        made.append(Class(dim, types[first], first, last, ones, pooled, tuple(largest), begin, chunks, align))
        lists.append((begin, chunks))
        ids = int(matrix[mine][:, line.COUNT].sum())
        begin += ids
        chunks += ids // (sizes.few + 1) + ids // sizes.chunk + 1  # for each row with many, and for full ones
    return tuple(made), lists, begin, chunks
