from __future__ import annotations

import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding.id_hash import hash_ids, hashed_rows, remainder

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)


def unsigned_hash(id: int) -> int:
    return xxhash.xxh64(id.to_bytes(8, "little", signed=True), seed=0).intdigest()


@given(IDS)
def test_hashes_are_xxh64_of_the_eight_bytes(ids):
    hashes = hash_ids(torch.tensor(ids, dtype=torch.int64)).tolist()
    assert [bits % 2**64 for bits in hashes] == [unsigned_hash(id) for id in ids]


@given(IDS, st.integers(1, 2**62))
def test_the_remainder_is_that_of_the_unsigned_number(ids, size):
    assert remainder(torch.tensor(ids, dtype=torch.int64), size).tolist() == [id % 2**64 % size for id in ids]


def test_rows_come_from_the_hash_and_keep_the_shape():
    ids = torch.tensor([[1, 2], [3, -4]])
    assert hashed_rows(ids, 7).tolist() == [[unsigned_hash(i) % 7 for i in row] for row in ids.tolist()]
    assert hashed_rows(ids.T, 7).tolist() == hashed_rows(ids, 7).T.tolist()


def test_hashing_traces_into_a_compiled_function():
    torch.library.opcheck(hash_ids, (torch.tensor([1, 2, 3]),))
