"""The native cache of dictionary hashes: what comes out must not depend on what was seen before."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec import _native
from hybridrec.data.hashing import hash_array

WORDS = st.lists(st.text(max_size=4), min_size=1, max_size=8, unique=True)


def ids_of(array: pa.Array, cache) -> list[int]:
    """The ids that a chunk of this column packs, in order."""
    batch = pa.RecordBatch.from_arrays([array], ["s"])
    chunk = _native.Chunk.create(*batch.__arrow_c_array__(), cache, 0)
    field = _native.IdField(0, -1, _native.Null.Empty, _native.Null.Empty, [], 0)
    packer = _native.Packer([field], [])
    block, at, starts = packer.pack_runs([chunk], [[0, 0, len(array)]], _native.Arena.create())
    return block[at[1] : at[1] + 8 * starts[-1]].view("int64").tolist()


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_ids_are_those_of_the_present_dictionary_whatever_came_before(dictionaries):
    cache = _native.HashCache()
    for words in dictionaries:
        array = pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int32()), pa.array(words))
        assert ids_of(array, cache) == hash_array(pa.array(words)).to_pylist()


@pytest.mark.parametrize("later", [["a", "bc"], ["ab", "c"], ["a", "bc", "d"], ["a"], ["b", "ac"]])
def test_a_dictionary_that_only_resembles_the_one_before_is_hashed_anew(later):
    cache = _native.HashCache()
    for words in (["a", "bc"], later, ["a", "bc"]):
        array = pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int32()), pa.array(words))
        assert ids_of(array, cache) == hash_array(pa.array(words)).to_pylist()


def test_a_code_outside_its_dictionary_is_refused():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 5], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(RuntimeError, match="outside its dictionary"):
        ids_of(array, _native.HashCache())
