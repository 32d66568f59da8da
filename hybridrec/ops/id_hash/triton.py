"""Hashes of ids on the GPU, and rows from them, equal to those of `embedding/id_hash.py` bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import of
from hybridrec.ops.row_groups import triton as groups

IDS = 1024  # of a program


@triton.jit
def xxh64(bits, SEED: tl.constexpr = 0):
    """XXH64 of the 8 bytes of each uint64."""
    PRIME1: tl.constexpr = 0x9E3779B185EBCA87
    PRIME2: tl.constexpr = 0xC2B2AE3D27D4EB4F
    PRIME3: tl.constexpr = 0x165667B19E3779F9
    PRIME4: tl.constexpr = 0x85EBCA77C2B2AE63
    START: tl.constexpr = 0x27D4EB2F165667C5 + 8 + SEED  # the fifth prime, and the number of bytes
    word = bits * PRIME2
    word = ((word << 31) | (word >> 33)) * PRIME1
    h = word ^ START
    h = ((h << 27) | (h >> 37)) * PRIME1 + PRIME4
    h = (h ^ (h >> 33)) * PRIME2
    h = (h ^ (h >> 29)) * PRIME3
    return h ^ (h >> 32)


@triton.jit
def hash_each(ids, out, n, N: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    id = tl.load(ids + i, mask=i < n, other=0)
    tl.store(out + i, xxh64(id.to(tl.uint64)).to(tl.int64), mask=i < n)


@triton.jit(do_not_specialize=["size"])  # a table of one row is no case of its own
def hash_in_turn(ids, out, n, size, ROUNDS: tl.constexpr, N: tl.constexpr):
    """Rows [n, ROUNDS] of ids: round r hashes the hash of the round before, and its row lies in block r."""
    i = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    id = tl.load(ids + i, mask=i < n, other=0)
    bits = id.to(tl.uint64)
    for turn in tl.static_range(ROUNDS):
        bits = xxh64(bits)
        row = (bits % size.to(tl.uint64)).to(tl.int64) + turn * size.to(tl.int64)
        tl.store(out + i * ROUNDS + turn, tl.where(id == of.NO_ID, id, row), mask=i < n)


@triton.jit
def resolve_ids(
    values,  # int64 [N]
    features,  # int64 [F, LENGTH]
    first_programs,  # int32 [F + 1]
    rows,  # int64 [N]
    IDS: tl.constexpr,
    FEATURES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Ids as they are, but of features whose table says so those outside it become rows by their hash."""
    program = tl.program_id(0)
    feature = groups.feature_of(first_programs, program, FEATURES, STEPS)
    line = features + feature * of.LENGTH
    start, count, size = tl.load(line + of.START), tl.load(line + of.COUNT), tl.load(line + of.SIZE)
    i = (program - tl.load(first_programs + feature)) * IDS + tl.arange(0, IDS)
    id = tl.load(values + start + i, mask=i < count, other=0)
    if tl.load(line + of.HASHED) != 0:
        hashed = (xxh64(id.to(tl.uint64)) % size.to(tl.uint64)).to(tl.int64)
        id = tl.where(((id < 0) | (id >= size)) & (id != of.NO_ID), hashed, id)
    tl.store(rows + start + i, id, mask=i < count)


def hash_ids(ids: Tensor) -> Tensor:
    """The hash of every id, as int64 of the same 64 bits."""
    source = ids.contiguous()
    made = torch.empty_like(source)
    if source.numel():
        hash_each[(triton.cdiv(source.numel(), IDS),)](source, made, source.numel(), N=IDS)
    return made


def hashed_blocks(ids: Tensor, rounds: int, size: int) -> Tensor:
    """The rows of every id, int64 [N, rounds]: row r lies in block r of `size` rows."""
    made = torch.empty(len(ids), rounds, dtype=torch.int64, device=ids.device)
    if len(ids):
        hash_in_turn[(triton.cdiv(len(ids), IDS),)](ids.contiguous(), made, len(ids), size, ROUNDS=rounds, N=IDS)
    return made


def hash_outside(values: Tensor, layout: Any) -> Tensor:
    """The ids of a layout's features as rows of their tables, where these give ids outside them a row by hash."""
    rows = torch.empty_like(values)
    if layout.programs:
        kind = {"IDS": layout.sizes.ids, "FEATURES": len(layout.order), "STEPS": len(layout.order).bit_length()}
        resolve_ids[(layout.programs,)](values, layout.features, layout.first_programs, rows, **kind)
    return rows
