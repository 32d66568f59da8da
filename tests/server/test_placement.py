"""Which server has an id: even, stable when servers are added, and the same in native code and by definition."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hybridrec import _native
from hybridrec.server.placement import SEED, drawn_owners, owners

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30).map(lambda ids: np.array(ids, np.int64))


@given(IDS, st.integers(1, 9))
def test_native_code_draws_the_owners_of_the_definition(ids, count):
    found = owners(ids, count)
    assert found.tolist() == drawn_owners(ids, count).tolist()
    hashes = [[xxhash.xxh64_intdigest(id.tobytes(), SEED + server) for server in range(count)] for id in ids]
    assert found.tolist() == [max(range(count), key=lambda server: of[server]) for of in hashes]


@given(IDS, st.integers(1, 9))
def test_one_more_server_takes_ids_and_moves_no_other(ids, count):
    before, after = owners(ids, count), owners(ids, count + 1)
    assert set(after[before != after].tolist()) <= {count}


def test_every_server_has_its_part_of_the_ids():
    shares = np.bincount(owners(np.arange(60_000), 6)) / 10_000
    assert shares.min() > 0.95
    assert shares.max() < 1.05


def test_no_server_cannot_hold_rows():
    with pytest.raises(ValueError, match="there are 0 servers; at least one"):
        owners(np.arange(3), 0)


@given(IDS, st.integers(1, 5))
def test_a_router_sends_ids_of_a_served_table_to_their_owners(ids, count):
    for rows, asked in ((-1, ids), (2**32 - 2, ids % (2**32 - 2))):  # of dynamic and of fixed tables
        router = _native.Router([(rows, "error", list(range(count)), False, True)], count)
        routed = router.route(asked.ctypes.data, [(0, 0, len(asked))])
        expected = np.bincount(owners(np.unique(asked), count), minlength=count)
        assert routed.counts().tolist() == expected.tolist()
