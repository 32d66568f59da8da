from __future__ import annotations

import re

import numpy as np
import pytest

from hybridrec.embedding.parameters import finite, whole


def test_whole_numbers_of_any_kind_become_ints():
    assert [type(whole("it", "n", value, least=1)) for value in (3, np.int32(3), np.uint64(3))] == [int] * 3


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(TypeError, match=re.escape(f"it: n is {value!r}; it must be a whole number")):
        whole("it", "n", value, least=0)


@pytest.mark.parametrize("value", [0, 6])
def test_numbers_outside_their_range_are_refused(value):
    with pytest.raises(ValueError, match=f"it: n is {value}; it must be from 1 to 5"):
        whole("it", "n", value, least=1, most=5)


@pytest.mark.parametrize(("value", "error"), [(float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError)])
def test_what_is_no_finite_number_is_refused(value, error):
    with pytest.raises(error, match="it: x is"):
        finite("it", "x", value)
