"""Tables and ragged batches for tests: what hypothesis draws, and losses that use the embeddings in different ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from hybridrec.embedding import Embeddings, Table, Uniform
from hybridrec.embedding.table import OUT_OF_RANGE
from hybridrec.types import IdBlock, Ragged

COMBINERS = ("sum", "mean", "sqrtn", "max", "none")
DIMS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 129, 200, 257)
HOTNESS = (None, None, 0, 1, 3)  # ids per row of a feature; None is ragged
USES = ("flat", "pieces", "both", "cat", "columns", "rows")


@st.composite
def table_lists(draw: st.DrawFn, most: int = 3, dims: Sequence[int] = DIMS) -> list[Table]:
    """One to `most` fixed tables with up to three features each."""
    return [_table(draw, f"t{number}", dims) for number in range(draw(st.integers(1, most)))]


def _table(draw: st.DrawFn, name: str, dims: Sequence[int]) -> Table:
    features = [f"{name}{letter}" for letter in "abc"[: draw(st.integers(1, 3))]]
    combiner = {feature: draw(st.sampled_from(COMBINERS)) for feature in features}
    dim, rows, beyond = draw(st.sampled_from(dims)), draw(st.integers(1, 9)), draw(st.sampled_from(OUT_OF_RANGE))
    return Table(name, dim, rows=rows, features=features, combiner=combiner, init=Uniform(1.0), out_of_range=beyond)


@st.composite
def blocks(draw: st.DrawFn, tables: Sequence[Table], weighted: bool | None = None) -> IdBlock:
    """A batch of 0 to 5 rows for these tables, with a stranger among the features; weights are quarters."""
    batch = draw(st.integers(0, 5))
    columns: dict[str, Tensor | Ragged] = {"stranger": torch.arange(batch)}
    for table in tables:
        for feature in table.features:
            columns[feature] = _column(draw, batch, _ids(table))
    columns = dict(draw(st.permutations(list(columns.items()))))
    if not (draw(st.booleans()) if weighted is None else weighted):
        return IdBlock.from_ragged(columns, batch_size=batch)
    sizes = {
        name: column.numel() if isinstance(column, Tensor) else len(column.flat) for name, column in columns.items()
    }
    weights = {
        name: torch.tensor(draw(st.lists(st.integers(-8, 8), min_size=size, max_size=size))) / 4.0
        for name, size in sizes.items()
        if size
    }
    return IdBlock.from_ragged(columns, weights, batch_size=batch)


def _ids(table: Table) -> st.SearchStrategy[int]:
    """Ids of the table's rows, and others where it takes them."""
    known = st.integers(0, table.fixed_rows - 1)
    strange = st.sampled_from([table.fixed_rows, -1, 2**63 - 1, -(2**63)])
    return known if table.out_of_range == "error" else known | known | strange


def _column(draw: st.DrawFn, batch: int, ids: st.SearchStrategy[int]) -> Tensor | Ragged:
    hot = draw(st.sampled_from(HOTNESS))
    if hot is None:
        lists = draw(st.lists(st.lists(ids, max_size=4), min_size=batch, max_size=batch))
        return Ragged.from_lists(lists, dtype=torch.int64)
    flat = draw(st.lists(ids, min_size=batch * hot, max_size=batch * hot))
    return torch.tensor(flat, dtype=torch.int64).view(batch, hot)


def random_block(sizes: Mapping[str, int], batch: int, seed: int, longest: int = 4) -> IdBlock:
    """A batch in which every feature is ragged, with ids below the size given for it."""
    generator = torch.Generator().manual_seed(seed)
    columns = {}
    for name, rows in sizes.items():
        lengths = torch.randint(0, longest + 1, (batch,), generator=generator)
        ids = torch.randint(0, rows, (int(lengths.sum()),), generator=generator)
        columns[name] = Ragged(ids, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
    return IdBlock.from_ragged(columns)


def factors(shape: Sequence[int], seed: int) -> Tensor:
    """Multiples of an eighth, so that sums of a few of their products are exact."""
    return torch.randint(-8, 9, tuple(shape), generator=torch.Generator().manual_seed(seed)) / 8.0


def loss_of(out: Embeddings, seed: int = 0, use: str = "flat") -> Tensor:
    """A loss over all embeddings, which reads them as `use` says."""
    parts = [_used(out.flat, use)]
    if use in ("pieces", "both"):
        parts = [out[name] for name in reversed(out.pooled)] + parts * (use == "both")
    for sequence in out.sequences.values():
        parts.append(_used(sequence.flat, use))
    return sum((part * factors(part.shape, seed + 7 * n).to(part)).sum() for n, part in enumerate(parts))  # pyright: ignore


def _used(values: Tensor, use: str) -> Tensor:
    """The vectors, used so that their gradient is a window of a wider one, is by columns, or is one row for all."""
    if use == "cat":
        return torch.cat([values, values.new_ones(len(values), 2)], dim=1)
    return {"columns": values.t(), "rows": values.sum(0, keepdim=True)}.get(use, values)
