"""Multi-hash features: every id becomes several rows of its table, found by hashing over and over."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from hybridrec.embedding.id_hash import hash_ids, remainder
from hybridrec.embedding.policies import MultiHash
from hybridrec.types import IdBlock


def rows_of(ids: Tensor, hashes: MultiHash) -> Tensor:
    """The rows of every id, int64 [N, rounds]: row r lies in block r of `size` rows.

    Round r hashes the hash of round r - 1, and round 0 the id: XXH64 of 8 bytes with seed 0.

    >>> rows_of(torch.tensor([5, 6]), MultiHash(rounds=2, size=10)) // 10
    tensor([[0, 1],
            [0, 1]])
    """
    if ids.is_cuda:
        from hybridrec.ops.id_hash.triton import hashed_blocks  # Triton comes with it

        return hashed_blocks(ids, hashes.rounds, hashes.size)
    rows, bits = [], ids
    for turn in range(hashes.rounds):
        bits = hash_ids(bits)
        rows.append(remainder(bits, hashes.size) + turn * hashes.size)
    return torch.stack(rows, dim=1)


def expand(block: IdBlock, hashes: Mapping[str, MultiHash]) -> IdBlock:
    """The block with the ids of the features named in `hashes` replaced by their rows, one id's rows together.

    >>> block = expand(IdBlock.from_lists({"a": [1, 2], "b": [[7], []]}), {"b": MultiHash(3, 10)})
    >>> block["a"].to_list(), block.lengths("b")
    ([[1], [2]], tensor([3, 0]))
    """
    rounds = [hashes[name].rounds if name in hashes else 1 for name in block.names]
    values = [_values(block[name].flat, hashes.get(name)) for name in block.names]
    ragged = [turns for turns, hot in zip(rounds, block.hotness, strict=True) if hot is None]
    return IdBlock(
        block.names,
        torch.cat(values),
        (0, *accumulate(part.shape[0] for part in values)),
        tuple(None if hot is None else hot * turns for hot, turns in zip(block.hotness, rounds, strict=True)),
        _offsets(block.offsets, ragged),
        _weights(block, rounds),
        batch_size=block.batch_size,
    )


def _values(ids: Tensor, hashes: MultiHash | None) -> Tensor:
    return ids if hashes is None else rows_of(ids, hashes).flatten()


def _offsets(offsets: Tensor, rounds: list[int]) -> Tensor:
    """Numbers of rows for numbers of ids; the rounds do not go to the device, which a captured graph would refuse."""
    return torch.stack([line * turns for line, turns in zip(offsets, rounds, strict=True)]) if rounds else offsets


def _weights(block: IdBlock, rounds: list[int]) -> Tensor | None:
    """Every row of an id has the id's weight."""
    if block.weights is None:
        return None
    parts = [block.weights[a:b] for a, b in zip(block.starts, block.starts[1:], strict=False)]
    spread = [part if turns == 1 else part.repeat_interleave(turns) for part, turns in zip(parts, rounds, strict=True)]
    return torch.cat(spread)


class Expansion:
    """A block as it is looked up: with the rows of ids that are hashed to several. Without such features, as it is.

    Ids may be sent to other ranks before their lookup; what is `kept` of a block is then what its lookup takes.
    """

    def __init__(self, names: tuple[str, ...], hashes: Mapping[str, MultiHash]) -> None:
        self._names, self._hashes = names, hashes
        self._kept: dict[int, list[tuple[IdBlock, IdBlock]]] = {}  # blocks are held, so their ids are their own

    def __call__(self, block: IdBlock) -> IdBlock:
        if not self._hashes:
            return block
        kept = self._kept.get(id(block)) if self._kept else None  # torch.compile would know each block by its id
        if kept is None:
            return expand(block.select(self._names), self._hashes)
        _, inner = kept.pop()
        if not kept:
            del self._kept[id(block)]
        return inner

    def kept(self, block: IdBlock, inner: IdBlock | None = None) -> IdBlock:
        """The same, for a lookup that will come; every such block goes once for each time that it is kept."""
        if not self._hashes:
            return block
        before = self._kept.get(id(block), [])
        inner = inner or (before[-1][1] if before else self(block))
        self._kept[id(block)] = [*before, (block, inner)]
        return inner

    def forget(self) -> None:
        """No lookup will come of what is kept."""
        self._kept.clear()
