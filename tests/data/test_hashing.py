from __future__ import annotations

import datetime
import struct

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.hashing import hash_array, hash_pairs, xxh64

SEEDS = st.integers(0, 2**64 - 1)

# Sanity vectors of the xxHash project: bytes drawn from its generator, by length and seed.
PRIME32 = 2654435761


def sanity_bytes(n: int) -> bytes:
    state, out = PRIME32, bytearray()
    for _ in range(n):
        out.append(state >> 56)
        state = state * 11400714785074694797 % 2**64
    return bytes(out)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def oracle(value, seed=0):
    if value is None:
        return None
    if isinstance(value, int):
        value = (value % 2**64).to_bytes(8, "little")
    return signed(xxhash.xxh64_intdigest(value, seed))


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"", PRIME32, 0xAC75FDA2929B17EF),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (sanity_bytes(1), 0, 0xE934A84ADB052768),
        (sanity_bytes(1), PRIME32, 0x5014607643A9B4C3),
        (sanity_bytes(4), 0, 0x9136A0DCA57457EE),
        (sanity_bytes(14), 0, 0x8282DCC4994E35C8),
        (sanity_bytes(14), PRIME32, 0xC3BD6BF63DEB6DF0),
        (sanity_bytes(222), 0, 0xB641AE8CB691C174),
        (sanity_bytes(222), PRIME32, 0x20CB8AB7AE10C14A),
    ],
)
def test_published_vectors_are_reproduced(data, seed, expected):
    assert xxh64(data, seed) == expected
    assert hash_array(pa.array([data]), seed).to_pylist() == [signed(expected)]


def test_a_string_hashes_as_its_utf8_bytes():
    assert xxh64("žluť") == xxh64("žluť".encode()) == xxhash.xxh64_intdigest("žluť".encode())


@given(st.binary(max_size=200), SEEDS)
def test_any_bytes_agree_with_the_xxhash_package(data, seed):
    assert xxh64(data, seed) == xxhash.xxh64_intdigest(data, seed)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
@given(st.lists(st.none() | st.binary(max_size=80), max_size=20), st.data(), SEEDS)
def test_binary_columns_hash_their_bytes_in_slices_too(kind, values, data, seed):
    start = data.draw(st.integers(0, len(values)))
    array = pa.array(values, kind).slice(start)
    assert hash_array(array, seed).to_pylist() == [oracle(v, seed) for v in values[start:]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_string_columns_of_every_layout_hash_alike(kind):
    array = pa.array(["", "a", None, "a much longer string than thirty-two bytes of text", "ü"], kind)
    expected = [None if v is None else signed(xxh64(v)) for v in array.to_pylist()]
    assert hash_array(array).to_pylist() == expected
    assert hash_array(array.slice(1, 3)).to_pylist() == expected[1:4]


def test_fixed_size_binary_hashes_its_bytes():
    array = pa.array([b"abc", None, b"xyz"], pa.binary(3)).slice(1)
    assert hash_array(array).to_pylist() == [None, oracle(b"xyz")]


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@given(st.data())
def test_integers_of_every_width_hash_their_eight_bytes(name, data):
    limits = np.iinfo(name)
    values = data.draw(st.lists(st.none() | st.integers(int(limits.min), int(limits.max)), max_size=20))
    start = data.draw(st.integers(0, len(values)))
    array = pa.array(values, pa.type_for_alias(name)).slice(start)
    assert hash_array(array).to_pylist() == [oracle(v) for v in values[start:]]


def test_bools_dates_and_times_hash_the_integer_they_are_stored_as():
    assert hash_array(pa.array([True, False, None]).slice(1)).to_pylist() == [oracle(0), None]
    day = datetime.date(1970, 1, 11)
    assert hash_array(pa.array([day, None])).to_pylist() == [oracle(10), None]
    noon = pa.array([datetime.time(0, 0, 7)], pa.time32("s"))
    assert hash_array(noon).to_pylist() == [oracle(7)]
    assert hash_array(pa.array([5, None], pa.timestamp("us"))).to_pylist() == [oracle(5), None]


@given(st.lists(st.sampled_from([None, "a", "b", "c" * 40]), max_size=30), st.data())
def test_a_dictionary_column_hashes_like_its_plain_form(values, data):
    start = data.draw(st.integers(0, len(values)))
    plain = pa.array(values, pa.string())
    assert hash_array(plain.dictionary_encode().slice(start)).equals(hash_array(plain.slice(start)))


def test_a_null_inside_the_dictionary_is_null():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0, 1]), pa.array(["a", None]))
    assert hash_array(array).to_pylist() == [oracle(b"a"), None, None, oracle(b"a"), None]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.uint8(), pa.null(), pa.binary(2)], ids=str)
def test_an_empty_column_gives_an_empty_int64_column(kind):
    assert hash_array(pa.array([], kind)).equals(pa.array([], pa.int64()))


def test_a_column_of_empty_strings_hashes_the_empty_string():
    assert hash_array(pa.array(["", ""])).to_pylist() == [signed(0xEF46DB3751D8E999)] * 2


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), max_size=20), SEEDS)
def test_pairs_hash_their_sixteen_bytes(pairs, seed):
    left, right = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    assert hash_pairs(left, right, seed).tolist() == [oracle(struct.pack("<qq", *p), seed) for p in pairs]


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}], ids=str)
def test_a_type_that_cannot_be_hashed_is_named(value):
    with pytest.raises(TypeError, match=r"cannot be hashed.*integers"):
        hash_array(pa.array([value]))


def test_a_value_that_is_no_bytes_is_refused():
    with pytest.raises(TypeError, match="bytes or str, not int"):
        xxh64(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_beyond_64_bits_is_refused(seed):
    with pytest.raises(ValueError, match=r"seed .* outside 0"):
        xxh64(b"", seed)
