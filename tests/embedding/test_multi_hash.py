from __future__ import annotations

import pytest
import torch
import xxhash

from hybridrec.embedding import MultiHash
from hybridrec.embedding.multi_hash import expand, rows_of
from hybridrec.types import IdBlock, Ragged


def expected_rows(id: int, hashes: MultiHash) -> list[int]:
    rows, data = [], id.to_bytes(8, "little", signed=True)
    for turn in range(hashes.rounds):
        data = xxhash.xxh64(data, seed=0).intdigest().to_bytes(8, "little")
        rows.append(int.from_bytes(data, "little") % hashes.size + turn * hashes.size)
    return rows


@pytest.mark.parametrize("hashes", [MultiHash(1, 10), MultiHash(2, 1000), MultiHash(5, 2**31)])
def test_row_r_is_the_hash_of_round_r_in_block_r(hashes):
    ids = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    assert rows_of(torch.tensor(ids), hashes).tolist() == [expected_rows(id, hashes) for id in ids]


def block(weights: bool = True) -> IdBlock:
    features = {
        "plain": torch.tensor([7, 8, 9]),
        "tags": Ragged.from_lists([[1], [], [2, 3]]),
        "pair": torch.tensor([[1, 2], [3, 4], [5, 6]]),
        "other": Ragged.from_lists([[], [5], []]),
    }
    given = {"tags": torch.tensor([0.5, 0.25, 2.0]), "pair": torch.arange(6.0)} if weights else None
    return IdBlock.from_ragged(features, given)


HASHES = {"tags": MultiHash(3, 10), "pair": MultiHash(2, 10)}


def test_the_ids_of_the_features_named_become_rows_and_the_others_stay():
    out = expand(block(), HASHES).check()
    assert out.hotness == (1, None, 4, None)
    assert out["plain"].to_list() == [[7], [8], [9]]
    assert out["other"].to_list() == [[], [5], []]
    tags = [expected_rows(id, HASHES["tags"]) for id in (1, 2, 3)]
    assert out["tags"].to_list() == [tags[0], [], tags[1] + tags[2]]
    assert out["pair"].to_list()[1] == expected_rows(3, HASHES["pair"]) + expected_rows(4, HASHES["pair"])


def test_every_row_of_an_id_has_the_weight_of_the_id():
    out = expand(block(), HASHES)
    assert out.weights_of("tags").tolist() == [0.5] * 3 + [0.25] * 3 + [2.0] * 3
    assert out.weights_of("pair").tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert out.weights_of("plain").tolist() == [1] * 3
    assert expand(block(weights=False), HASHES).weights is None


def test_no_rows_and_no_ids_expand_to_none():
    empty = IdBlock.from_ragged({"tags": Ragged.from_lists([[], []]), "pair": torch.empty(2, 0, dtype=torch.int64)})
    out = expand(empty, HASHES).check()
    assert (len(out.values), out.batch_size, out.hotness) == (0, 2, (None, 0))
