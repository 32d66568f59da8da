"""Numbers on the wire are those that torch would send."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.server.wire_types import WIRE, on_wire, received

NUMBERS = st.lists(st.integers(0, 2**32 - 1), max_size=20).map(lambda bits: np.array(bits, np.uint32).view(np.float32))


@given(NUMBERS, st.sampled_from(["float16", "bfloat16"]))
def test_halves_are_rounded_as_torch_rounds_them(numbers, wire):
    found = received(on_wire(numbers, wire), wire)
    wanted = torch.from_numpy(numbers).to(getattr(torch, wire)).float().numpy()
    np.testing.assert_array_equal(found, wanted)  # which takes one NaN for another
    assert on_wire(numbers, wire).dtype == np.dtype(WIRE[wire])


@given(NUMBERS)
def test_float32_travels_as_it_is(numbers):
    assert received(on_wire(numbers, "float32"), "float32").tobytes() == numbers.tobytes()
