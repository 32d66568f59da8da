from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.transforms import Hash, Modulo
from tests.data.transforms.columns import INTEGERS, WORDS, check, columns, numbers_of, xxh


@given(columns(WORDS, pa.string()), st.integers(0, 2**64 - 1))
def test_hash_is_xxh64_of_strings_at_any_depth(array, seed):
    check(Hash(seed), array, lambda v: xxh(v, seed))


@pytest.mark.parametrize("name", INTEGERS)
@given(st.data())
def test_hash_and_modulo_take_integers_of_every_width(name, data):
    array = data.draw(columns(numbers_of(name), pa.type_for_alias(name)))
    n = data.draw(st.integers(1, 2**63 - 1) | st.integers(1, 10))
    check(Hash(), array, xxh)
    check(Modulo(n), array, lambda v: v % n)


def test_modulo_of_the_int64_extremes_is_exact():
    extremes = [-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1]
    for n in (1, 2, 3, 7, 2**31, 2**62 + 1, 2**63 - 1):
        assert Modulo(n)(pa.array(extremes)).to_pylist() == [v % n for v in extremes]
