from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.ops.philox import reference, reference_torch

IDS = np.array([0, 1, 5, 2**31, 2**32, 2**32 + 5, -1, -(2**63), 2**63 - 1], np.int64)
KEYS = st.integers(0, 2**64 - 1)
SOME_IDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8, unique=True)

# The known answers of Random123 (tests/kat_vectors): counter, key, words.
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def words_by_hand(counter: list[int], key: int) -> list[int]:
    """One block of Philox in Python integers."""
    a, b, c, d = counter
    k0, k1 = key % 2**32, key // 2**32
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q // 2**32 ^ b ^ k0, q % 2**32, p // 2**32 ^ d ^ k1, p % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def values(bits: np.ndarray, dtype: reference.HalfType) -> np.ndarray:
    """The numbers behind the bits of a half type, as float64."""
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype]
    return torch.from_numpy(bits.view(np.int16).copy()).view(kind).double().numpy()


def rounded_each_way(x: float, dtype: reference.HalfType) -> np.ndarray:
    """The number rounded with each of the 65536 draws, as float64."""
    draws = np.arange(2**16, dtype=np.uint16)
    return values(reference.round_with(np.full(2**16, x, np.float32), draws, dtype), dtype)


def neighbours(x: np.ndarray, dtype: reference.HalfType) -> tuple[np.ndarray, np.ndarray]:
    """The largest half number that is not above x, and the smallest that is not below it (the same where x is one)."""
    every = values(np.arange(2**16, dtype=np.uint16), dtype)
    every = np.unique(every[np.isfinite(every)])
    below = np.maximum(np.searchsorted(every, x, side="right") - 1, 0)
    above = np.minimum(np.searchsorted(every, x, side="left"), len(every) - 1)
    return every[below], every[above]


def nearest(x: float, dtype: reference.HalfType) -> float:
    return torch.tensor(x, dtype=torch.float32).to(getattr(torch, dtype)).double().item()


# -- the generator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_known_answers_of_random123_come_out(counter, key, words):
    joined = key[0] + (key[1] << 32)
    assert reference.philox4x32(np.array(counter, np.uint32), joined).tolist() == words
    assert reference_torch.philox4x32(torch.tensor(counter), joined).tolist() == words


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4), min_size=1, max_size=4), KEYS)
def test_numpy_and_pytorch_give_the_words_of_the_definition(counters, key):
    expected = [words_by_hand(counter, key) for counter in counters]
    assert reference.philox4x32(np.array(counters, np.uint32), key).tolist() == expected
    assert reference_torch.philox4x32(torch.tensor(counters), key).tolist() == expected


# -- initial values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["uniform", "normal"])
@given(key=KEYS, ids=SOME_IDS, dim=st.integers(1, 9), scale=st.floats(1e-6, 10))
def test_initial_rows_are_bit_equal_in_numpy_and_pytorch(draw, key, ids, dim, scale):
    plain = getattr(reference, draw)(key, np.array(ids), dim, scale)
    tensor = getattr(reference_torch, draw)(key, torch.tensor(ids), dim, scale)
    assert same_bits(plain, tensor.numpy())


def test_a_uniform_value_is_that_of_its_counter_and_word():
    rows = reference.uniform(77, IDS, 6, scale=0.3)
    for row, identity in enumerate(IDS.tolist()):
        for column in range(6):
            counter = [identity & 0xFFFFFFFF, identity >> 32 & 0xFFFFFFFF, column // 4, 0]
            word = words_by_hand(counter, 77)[column % 4]
            assert rows[row, column] == np.float32((word >> 8) - 2**23) * np.float32(0.3 * 2.0**-23)


def test_a_normal_value_is_that_of_its_eight_halves():
    rows = reference.normal(77, IDS, 3, std=2.0)
    for row, identity in enumerate(IDS.tolist()):
        for column in range(3):
            words = words_by_hand([identity & 0xFFFFFFFF, identity >> 32 & 0xFFFFFFFF, column, 1], 77)
            total = sum(word % 65536 + word // 65536 for word in words) - 262140
            assert rows[row, column] == np.float32(total) * np.float32(2.0 / math.sqrt(8 * (2**32 - 1) / 12))


@pytest.mark.parametrize("draw", [reference.uniform, reference.normal])
def test_a_row_depends_on_neither_its_neighbours_nor_the_width(draw):
    together = draw(3, IDS, 9, 0.5)
    order = np.random.default_rng(0).permutation(len(IDS))
    assert same_bits(draw(3, IDS[order], 9, 0.5), together[order])
    assert same_bits(draw(3, IDS, 5, 0.5), np.ascontiguousarray(together[:, :5]))
    for row, identity in enumerate(IDS):
        assert same_bits(draw(3, IDS[row : row + 1], 9, 0.5)[0], together[row]), identity


@pytest.mark.parametrize("draw", [reference.uniform, reference.normal])
def test_another_key_id_or_column_gives_another_value(draw):
    rows = draw(3, IDS, 8, 0.5)
    assert len(np.unique(rows)) == rows.size
    assert not np.any(rows == draw(4, IDS, 8, 0.5))
    assert not np.any(rows == draw(3 + 2**32, IDS, 8, 0.5))


def test_uniform_values_fill_their_range_evenly():
    rows = reference.uniform(1, np.arange(20000), 8, scale=0.25)
    assert rows.min() >= -0.25
    assert rows.max() < 0.25
    counts, _ = np.histogram(rows, bins=16, range=(-0.25, 0.25))
    assert np.abs(counts / rows.size - 1 / 16).max() < 0.002


def test_normal_values_have_the_moments_of_a_sum_of_eight_uniforms():
    rows = reference.normal(1, np.arange(20000), 8, std=3.0).astype(np.float64) / 3
    assert abs(rows.mean()) < 0.01
    assert abs(rows.std() - 1) < 0.01
    assert abs((rows**4).mean() - 2.85) < 0.06
    assert np.abs(rows).max() < 4.9


def test_no_ids_give_no_rows():
    nothing = np.empty(0, np.int64)
    for draw in ("uniform", "normal"):
        assert getattr(reference, draw)(1, nothing, 5, 1.0).shape == (0, 5)
        assert getattr(reference_torch, draw)(1, torch.empty(0, dtype=torch.int64), 5, 1.0).shape == (0, 5)
    assert reference.admitted(1, nothing, 0.5).shape == (0,)
    assert reference.round_stochastic(1, nothing, np.empty((0, 5), np.float32), 1, "float16").shape == (0, 5)


# -- admission ------------------------------------------------------------------------------------------------


def test_a_larger_probability_admits_more_and_keeps_those_it_had():
    ids = np.arange(20000) - 10000
    before = np.zeros(len(ids), bool)
    for probability in [0.0, 1e-4, 0.1, 0.5, 0.9, 1.0]:
        now = reference.admitted(9, ids, probability)
        assert not np.any(before & ~now)
        assert abs(now.mean() - probability) < 0.015
        before = now
    assert before.all()
    assert not reference.admitted(9, ids, 0.0).any()


def test_the_border_of_admission_is_the_rounded_probability():
    word = words_by_hand([5, 0, 0xFFFFFFFF, 0], 9)[0]
    assert not reference.admitted(9, np.array([5]), word / 2**32)[0]
    assert reference.admitted(9, np.array([5]), (word + 1) / 2**32)[0]


# -- stochastic rounding --------------------------------------------------------------------------------------

NORMAL = {
    "float16": [1.0, 1.0003, 3.14159, 65503.9, 2**-14, 2**-14 * 1.0001, 1.9999],
    "bfloat16": [1.0, 1.0003, 3.14159, 3e38, 1e-37, 1.9999],
}
SUBNORMAL = {
    "float16": [6.1e-5, 2**-15, 1e-5, 1e-6, 2**-24, 1e-7, 3e-8, 1e-9, 1e-11],
    "bfloat16": [1e-38, 9e-41, 3e-42],
}
CASES = [(d, x) for group in (NORMAL, SUBNORMAL) for d in group for x in group[d]]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "x"), CASES)
def test_the_mean_over_all_draws_is_the_number_itself(dtype, x, sign):
    exact = float(np.float32(sign * x))
    mean = rounded_each_way(exact, dtype).mean()
    cut = 2.0**-40 if dtype == "float16" and abs(exact) < 2**-14 else 0.0
    assert 0 <= (exact - mean) * sign <= cut


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "x"), CASES)
def test_both_neighbours_come_out_and_nothing_else(dtype, x, sign):
    exact = float(np.float32(sign * x))
    found = np.unique(rounded_each_way(exact, dtype)).tolist()
    assert found == sorted({float(n[0]) for n in neighbours(np.array([exact]), dtype)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_number_stays_as_it_is(dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = values(bits, dtype).astype(np.float32)
    for draw in [0, 1, 0x1FFF, 0xFFFF]:
        again = reference.round_with(numbers, np.full(2**16, draw, np.uint16), dtype)
        assert np.all((again == bits) | np.isnan(numbers))
        assert np.isnan(values(again, dtype)[np.isnan(numbers)]).all()


@pytest.mark.parametrize(
    ("dtype", "largest", "border"),
    [("float16", 65504.0, 65520.0), ("bfloat16", 2.0**128 - 2.0**120, 2.0**128 - 2.0**119)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_infinity_comes_only_where_rounding_to_nearest_gives_it(dtype, largest, border, sign):
    below = float(np.nextafter(np.float32(border), np.float32(0)))
    assert np.unique(rounded_each_way(sign * below, dtype)).tolist() == [sign * largest]
    assert nearest(sign * below, dtype) == sign * largest
    assert np.unique(rounded_each_way(sign * border, dtype)).tolist() == [sign * math.inf]
    assert nearest(sign * border, dtype) == sign * math.inf
    assert np.unique(rounded_each_way(sign * math.inf, dtype)).tolist() == [sign * math.inf]


@pytest.mark.parametrize(("dtype", "quiet"), [("float16", 0x7E00), ("bfloat16", 0x7FC0)])
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF])
def test_a_nan_stays_a_nan_whatever_its_payload(dtype, quiet, bits):
    number = np.full(4, bits, np.uint32).view(np.float32)
    found = reference.round_with(number, np.array([0, 1, 0x1FFF, 0xFFFF], np.uint16), dtype)
    assert np.unique(found).tolist() == [quiet | (0x8000 if bits >> 31 else 0)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30), draw=st.integers(0, 2**16 - 1))
def test_any_number_goes_to_a_neighbour(dtype, bits, draw):
    numbers = np.array(bits, np.uint32).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    found = values(reference.round_with(numbers, np.full(len(numbers), draw, np.uint16), dtype), dtype)
    plain = torch.from_numpy(numbers.copy()).to(getattr(torch, dtype)).double().numpy()
    below, above = neighbours(numbers.astype(np.float64), dtype)
    assert np.all(np.where(np.isinf(plain), found == plain, (found == below) | (found == above)))
    assert np.array_equal(np.signbit(found), np.signbit(numbers))


def test_each_element_is_rounded_with_the_half_of_its_counter():
    rows = np.random.default_rng(0).normal(size=(len(IDS), 11)).astype(np.float32)
    found = reference.round_stochastic(77, IDS, rows, step=6, dtype="bfloat16")
    for row, identity in enumerate(IDS.tolist()):
        for column in range(11):
            words = words_by_hand([identity & 0xFFFFFFFF, identity >> 32 & 0xFFFFFFFF, column // 8, 2 + 6], 77)
            half = column % 8
            draw = words[half // 2] >> (16 * (half % 2)) & 0xFFFF
            assert found[row, column] == (int(rows[row, column].view(np.uint32)) + draw) >> 16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_draws_change_with_the_step_and_only_with_id_column_and_key_beside_it(dtype):
    rows = np.full((len(IDS), 16), 1.0007, np.float32)
    first = reference.round_stochastic(5, IDS, rows, 1, dtype)
    assert same_bits(first[::-1].copy(), reference.round_stochastic(5, IDS[::-1], rows, 1, dtype))
    assert same_bits(first[:, :9].copy(), reference.round_stochastic(5, IDS, rows[:, :9], 1, dtype))
    assert not same_bits(first, reference.round_stochastic(5, IDS, rows, 2, dtype))
    assert not same_bits(first, reference.round_stochastic(6, IDS, rows, 1, dtype))
    assert same_bits(first, reference.round_stochastic(5, IDS, rows, 1 + 2**32 - 2, dtype))


def test_many_small_updates_add_up_in_a_half_type():
    ids, value = np.arange(1000), np.full((1000, 1), 1.0, np.float32)
    for step in range(1, 101):
        bits = reference.round_stochastic(5, ids, value + np.float32(1e-4), step, "bfloat16")
        value = values(bits, "bfloat16").astype(np.float32)
    assert abs(value.mean() - 1.01) < 1e-3
