"""Ragged to and from torch's layouts: padded dense, nested (jagged), sparse (COO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.types.ragged import Ragged, offsets_of


def to_padded(ragged: Ragged, length: int | Sequence[int | None] | None, value: float) -> Tensor:
    """[n, L1, L2, …]: gathers at clamped positions, then fills what lies outside, all on the device."""
    _refuse_text(ragged, "padded")
    sizes = [None] * ragged.depth if length is None else [length] if isinstance(length, int) else list(length)
    if len(sizes) != ragged.depth:
        raise ValueError(f"length has {len(sizes)} entries but the nest is {ragged.depth} deep; give one per level")
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"length must not be negative, got {length}")
    inner = ragged.values
    flat = to_padded(inner, sizes[1:], value) if isinstance(inner, Ragged) else inner
    width = _longest(ragged) if sizes[0] is None else sizes[0]
    shape = (len(ragged), width, *flat.shape[1:])
    if 0 in shape or len(flat) == 0:
        return flat.new_full(shape, value)
    column = torch.arange(width, device=ragged.device)
    outside = column >= ragged.lengths()[:, None]  # [n, L]
    index = (ragged.offsets[:-1, None] + column).clamp_(max=len(flat) - 1)
    return flat[index].masked_fill(outside.view(*outside.shape, *[1] * (flat.dim() - 1)), value)


def from_padded(padded: Tensor, lengths: list[Tensor]) -> Ragged:
    """The entries before each row's length, level by level."""
    shapes = [list(level.shape) for level in lengths]
    if not lengths or shapes != [list(padded.shape[: k + 1]) for k in range(len(lengths))]:
        raise ValueError(
            f"lengths of shapes {shapes} do not fit padded {list(padded.shape)}: level k needs the "
            "first k + 1 sizes of it"
        )
    if padded.dim() <= len(lengths):
        raise ValueError(f"padded {list(padded.shape)} has no dimension for {len(lengths)} list levels")
    counts, width = lengths[0].to(padded.device, torch.int64), padded.shape[1]
    if len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= width:
        raise ValueError(f"lengths must lie in 0..{width}, got {int(counts.min())}..{int(counts.max())}")
    inside = torch.arange(width, device=padded.device) < counts[:, None]
    values: Tensor | Ragged = padded[inside]
    if len(lengths) > 1:
        values = from_padded(padded[inside], [level.to(padded.device)[inside] for level in lengths[1:]])
    return Ragged.trusted(values, offsets_of(counts))


def to_nested(ragged: Ragged) -> Tensor:
    """A jagged nested tensor over the same memory."""
    _refuse_text(ragged, "nested")
    if isinstance(ragged.values, Ragged):
        raise ValueError(
            f"torch's jagged layout has one list level and this nest has {ragged.depth}; convert .values, "
            "or use to_padded"
        )
    return torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)


def from_nested(nested: Any) -> Ragged:
    """A Ragged of the nested tensor's rows. (Any: pyright does not know the methods of torch's subclass.)"""
    if not isinstance(nested, Tensor) or not nested.is_nested:
        raise TypeError("from_nested needs a torch.nested tensor; for a dense one use from_padded")
    if nested.layout != torch.jagged:
        rows = nested.unbind()
        if not rows:
            raise ValueError("an empty nested tensor of strided layout has no row type; use layout=torch.jagged")
        return Ragged(torch.cat(rows), offsets_of(torch.tensor([len(row) for row in rows], device=nested.device)))
    return _from_jagged(nested)


def _from_jagged(nested: Any) -> Ragged:
    if nested._ragged_idx != 1:
        raise ValueError(f"the ragged dimension must be 1, got {nested._ragged_idx}; transpose it back first")
    offsets, values, lengths = nested.offsets().long(), nested.values(), nested.lengths()
    if lengths is not None:  # rows with holes between them, as torch.nested.narrow makes
        starts, offsets = offsets[: len(lengths)], offsets_of(lengths.long())
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
        values = values[torch.arange(len(shift), device=shift.device) + shift]
    return Ragged(values, offsets)


def to_sparse(ragged: Ragged) -> Tensor:
    """A coalesced COO tensor, one sparse dimension for the rows and one per list level."""
    _refuse_text(ragged, "sparse")
    sizes, level = [len(ragged)], ragged
    while isinstance(level, Ragged):
        sizes.append(_longest(level))
        level = level.values
    shape = (*sizes, *level.shape[1:])
    return torch.sparse_coo_tensor(_coordinates(ragged), level, shape, is_coalesced=True, check_invariants=False)


def from_sparse(sparse: Tensor) -> Ragged:
    """Rows in the order of their positions; a hole or a repeat would change the rows and is refused."""
    if sparse.layout != torch.sparse_coo or sparse.sparse_dim() != 2:
        raise ValueError(
            f"from_sparse needs a COO tensor with 2 sparse dimensions, got {sparse.layout} "
            f"{list(sparse.shape)}; use .to_sparse_coo() on other layouts"
        )
    (row, position), values = sparse._indices(), sparse._values()
    if not sparse.is_coalesced():  # coalesce() would sum repeated entries, and a sum of ids is no id
        order = torch.argsort(row * max(sparse.shape[1], 1) + position)
        row, position, values = row[order], position[order], values[order]
    offsets = offsets_of(torch.bincount(row, minlength=sparse.shape[0]))
    due = torch.arange(len(row), device=row.device) - offsets[row]
    if not torch.equal(position, due):
        at = int((position != due).nonzero()[0])
        raise ValueError(
            f"rows must be filled from position 0 without holes or repeats, but row {int(row[at])} has "
            f"position {int(position[at])} where {int(due[at])} is due"
        )
    return Ragged.trusted(values, offsets)


def _coordinates(ragged: Ragged) -> Tensor:
    """[depth + 1, entries]: for each entry its row, then its position in every level."""
    row = torch.repeat_interleave(torch.arange(len(ragged), device=ragged.device), ragged.lengths())
    position = torch.arange(len(row), device=ragged.device) - ragged.offsets[row]
    here = torch.stack([row, position])
    if not isinstance(ragged.values, Ragged):
        return here
    inner = _coordinates(ragged.values)
    return torch.cat([here[:, inner[0]], inner[1:]])


def _longest(ragged: Ragged) -> int:
    return int(ragged.lengths().max()) if len(ragged) else 0


def _refuse_text(ragged: Ragged, target: str) -> None:
    if ragged.leaf_text:
        raise TypeError(f"strings have no {target} form; hash them to ids, or use to_list or to_arrow")
