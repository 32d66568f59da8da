from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.transforms import Bucketize, Clip, Log1p, Standardize
from tests.data.transforms.columns import INTEGERS, check, columns, numbers_of


@pytest.mark.parametrize("name", [*INTEGERS, "float32", "float64"])
@given(st.data())
def test_a_bucket_counts_the_boundaries_not_above_the_value(name, data):
    array = data.draw(columns(numbers_of(name), pa.type_for_alias(name)))
    edge = st.integers(-(2**65), 2**65) | st.floats(-1e20, 1e20) | numbers_of(name).filter(math.isfinite)
    edges = sorted(set(data.draw(st.lists(edge, min_size=1, max_size=6))))
    nan_bucket = len(edges) + 1
    check(Bucketize(edges), array, lambda v: nan_bucket if v != v else sum(b <= v for b in edges))


def test_buckets_of_large_integers_do_not_round():
    edge = 2**53 + 1
    assert Bucketize([edge])(pa.array([edge - 1, edge])).to_pylist() == [0, 1]
    assert Bucketize([edge])(pa.array([float(edge - 1), float(edge + 1)])).to_pylist() == [0, 1]


@pytest.mark.parametrize("edges", [[3, 1], [1, 1], [2, 2.0]], ids=str)
def test_boundaries_that_do_not_rise_are_refused(edges):
    with pytest.raises(ValueError, match=f"rise strictly, but {edges[0]} comes before {edges[1]}"):
        Bucketize(edges)


@pytest.mark.parametrize("name", ["float32", "float64", "uint8", "uint64"])
@given(st.data())
def test_log1p_is_the_logarithm_of_one_plus_x(name, data):
    values = numbers_of(name)
    values = values.map(abs) if name.startswith("float") else values
    check(Log1p(), data.draw(columns(values, pa.type_for_alias(name))), math.log1p)


@pytest.mark.parametrize("value", [-1, -3])
def test_log1p_names_a_value_it_cannot_take(value):
    with pytest.raises(ValueError, match=rf"{value}.0 is not above -1; put Clip"):
        Log1p()(pa.array([[0.5, value]]))


@pytest.mark.parametrize("name", ["float32", "float64", "int16", "uint64"])
@given(st.data())
def test_standardize_subtracts_the_mean_and_divides(name, data):
    array = data.draw(
        columns(st.floats(-1e6, 1e6, width=32) if "f" in name else numbers_of(name), pa.type_for_alias(name))
    )
    mean, std = data.draw(st.integers(-100, 100)), data.draw(st.floats(0.01, 100))
    check(Standardize(mean, std), array, lambda v: (v - mean) / std)


def test_float_transforms_keep_float32_and_widen_the_rest():
    assert Log1p().output(pa.float16()) == Log1p().output(pa.float32()) == pa.float32()
    assert Standardize(0, 1).output(pa.list_(pa.int8())) == pa.list_(pa.float64())
    half = pa.array(np.array([0.5, 2.0], np.float16))
    assert Standardize(0.5, 3)(half).to_pylist() == [0.0, 0.5]
    assert Clip(1, None)(half).to_pylist() == [1.0, 2.0]
    assert Standardize(1, 2)(pa.array([Decimal("1.00"), None])).to_pylist() == [0.0, None]


@pytest.mark.parametrize("name", [*INTEGERS, "float32", "float64"])
@given(st.data())
def test_clip_limits_and_keeps_the_type(name, data):
    kind = pa.type_for_alias(name)
    array = data.draw(columns(numbers_of(name), kind))
    low, high = (
        data.draw(st.none() | st.integers(-(2**70), 100)),
        data.draw(st.none() | st.integers(100, 2**70)),
    )
    if low is None and high is None:
        low = 0

    def clipped(value):
        if low is not None and value < low:
            return type(value)(low)
        return type(value)(high) if high is not None and value > high else value

    check(Clip(low, high), array, clipped)
    assert Clip(low, high).output(kind) == kind


def test_fractional_limits_clip_integers_to_the_integers_inside():
    assert Clip(0.5, 2.5)(pa.array([0, 1, 9], pa.int8())).to_pylist() == [1, 1, 2]
    assert Clip(0.0, None)(pa.array([2**53 + 1, -1])).to_pylist() == [2**53 + 1, 0]


def test_limits_beyond_float32_leave_it_as_it_is():
    assert Clip(-1e300, 10**100)(pa.array([1.5, -2.5], pa.float32())).to_pylist() == [1.5, -2.5]
    assert Clip(0, None)(pa.array([math.inf, -math.inf])).to_pylist() == [math.inf, 0.0]


def test_limits_that_a_type_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="leaves no value of type uint8"):
        Clip(None, -3)(pa.array([1], pa.uint8()))


def test_values_hidden_under_nulls_are_not_looked_at():
    flat = pa.Array.from_buffers(pa.float64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([-9.0, 0.0]))])
    assert Log1p()(flat).to_pylist() == [None, 0.0]
    items = pa.array([-9.0, -9.0, 0.0, 0.0])
    mask = pa.array([True, False])
    assert Log1p()(pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), items, mask=mask)).to_pylist() == [
        None,
        [0.0, 0.0],
    ]
    assert Log1p()(pa.FixedSizeListArray.from_arrays(items, 2, mask=mask)).to_pylist() == [None, [0.0, 0.0]]
    unused = pa.DictionaryArray.from_arrays(pa.array([1, 1, 1]), pa.array([-9.0, 0.0]))
    assert Log1p()(unused).to_pylist() == [0.0] * 3
