from __future__ import annotations

import json
import math
import pickle
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.transforms import (
    OPS,
    Bucketize,
    Clip,
    Cross,
    Hash,
    Log1p,
    Modulo,
    Standardize,
    Truncate,
    Vocabulary,
    from_json,
)

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
LISTS = [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)]
WORDS = st.sampled_from(["", "a", "b", "žluť", "a string of more than thirty-two bytes, indeed"])


def numbers_of(name: str) -> st.SearchStrategy:
    if name.startswith("float"):
        return st.floats(width=int(name[5:]), allow_infinity=False)
    limits = np.iinfo(name)
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def columns(draw, values: st.SearchStrategy, kind: pa.DataType, max_depth: int = 2) -> pa.Array:
    """These values, flat or nested, with nulls at each level, perhaps sliced, perhaps a dictionary."""
    item = st.none() | values
    for wrap in draw(st.lists(st.sampled_from(LISTS), max_size=max_depth)):
        kind = wrap(kind)
        fixed = pa.types.is_fixed_size_list(kind)
        item = st.none() | st.lists(item, min_size=2 if fixed else 0, max_size=2 if fixed else 3)
    rows = draw(st.lists(item, max_size=8))
    array = pa.array(rows, kind)
    if not pa.types.is_nested(kind) and draw(st.booleans()):
        array = array.dictionary_encode()
    return array.slice(draw(st.integers(0, len(rows))), draw(st.integers(0, len(rows))))


def deep(function, value):
    if value is None:
        return None
    return [deep(function, v) for v in value] if isinstance(value, list) else function(value)


def same(got, want) -> bool:
    """Equal nests; NaN equals NaN, floats to float32 precision."""
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, float) and got is not None:
        return (math.isnan(got) and math.isnan(want)) or math.isclose(got, want, rel_tol=2e-7, abs_tol=1e-37)
    return got == want and type(got) is type(want)


def check(transform, array: pa.Array, function) -> None:
    result = transform(array)
    result.validate(full=True)
    assert result.type == transform.output(array.type)
    assert same(result.to_pylist(), deep(function, array.to_pylist()))


def xxh(value: int | str | bytes, seed: int = 0) -> int:
    data = value.encode() if isinstance(value, str) else value
    data = (data % 2**64).to_bytes(8, "little") if isinstance(data, int) else data
    return struct.unpack("<q", struct.pack("<Q", xxhash.xxh64_intdigest(data, seed)))[0]


# Hash and Modulo


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


def test_bools_count_as_zero_and_one():
    array = pa.array([True, None, False, True]).slice(1)
    assert Modulo(5)(array).to_pylist() == [None, 0, 1]
    assert Clip(1, None)(array).to_pylist() == [None, 1, 1]
    assert Log1p()(array).to_pylist() == [None, 0.0, math.log(2)]
    assert Hash()(array).to_pylist() == [None, xxh(0), xxh(1)]
    assert Vocabulary([1])(array).to_pylist() == [None, 0, 1]


# Bucketize


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


# Log1p, Standardize, Clip


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


def test_values_hidden_under_nulls_are_not_looked_at():
    flat = pa.Array.from_buffers(
        pa.float64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([-9.0, 0.0]))]
    )
    assert Log1p()(flat).to_pylist() == [None, 0.0]
    items = pa.array([-9.0, -9.0, 0.0, 0.0])
    mask = pa.array([True, False])
    assert Log1p()(
        pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), items, mask=mask)
    ).to_pylist() == [
        None,
        [0.0, 0.0],
    ]
    assert Log1p()(pa.FixedSizeListArray.from_arrays(items, 2, mask=mask)).to_pylist() == [None, [0.0, 0.0]]
    unused = pa.DictionaryArray.from_arrays(pa.array([1, 1, 1]), pa.array([-9.0, 0.0]))
    assert Log1p()(unused).to_pylist() == [0.0] * 3


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


# Truncate


@pytest.mark.parametrize("keep", ["first", "last"])
@given(st.data())
def test_truncate_keeps_n_items_of_each_row(keep, data):
    array = data.draw(columns(WORDS, pa.string()).filter(lambda a: pa.types.is_nested(a.type)))
    n = data.draw(st.integers(1, 4))
    result = Truncate(n, keep)(array)
    result.validate(full=True)
    assert result.type == Truncate(n, keep).output(array.type)
    cut = slice(None, n) if keep == "first" else slice(-n, None)
    assert result.to_pylist() == [None if row is None else row[cut] for row in array.to_pylist()]


def test_truncate_of_a_fixed_size_list_stays_fixed():
    array = pa.array([[1, 2, 3], None, [4, 5, None]], pa.list_(pa.int32(), 3)).slice(1)
    result = Truncate(2, "last")(array)
    assert result.type == pa.list_(pa.int32(), 2)
    assert result.to_pylist() == [None, [5, None]]


def test_truncate_takes_lists_of_dictionaries():
    items = pa.array(["a", "b", "a", "c"]).dictionary_encode()
    array = pa.ListArray.from_arrays(pa.array([0, 3, 4], pa.int32()), items)
    assert Truncate(1)(array).to_pylist() == [["a"], ["c"]]
    assert Hash()(array).to_pylist() == [[xxh("a"), xxh("b"), xxh("a")], [xxh("c")]]


def test_truncate_refuses_a_column_without_lists():
    with pytest.raises(TypeError, match="takes lists, not a column of type int64"):
        Truncate(2)(pa.array([1]))


# Vocabulary


@given(columns(WORDS, pa.string()), st.lists(WORDS, min_size=1, unique=True))
def test_a_known_word_becomes_one_plus_its_place(array, words):
    check(Vocabulary(words), array, lambda v: words.index(v) + 1 if v in words else 0)
    check(Vocabulary(words, oov=-7), array, lambda v: words.index(v) + 1 if v in words else -7)
    check(Vocabulary(words, oov="null"), array, lambda v: words.index(v) + 1 if v in words else None)


@pytest.mark.parametrize("name", INTEGERS)
@given(st.data())
def test_integers_of_any_width_meet_the_vocabulary_by_value(name, data):
    array = data.draw(columns(numbers_of(name) | st.integers(0, 3), pa.type_for_alias(name)))
    known = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
    words = data.draw(st.lists(known, min_size=1, unique=True) | st.just([2**64 - 1, 0]))
    check(Vocabulary(words), array, lambda v: words.index(v) + 1 if v in words else 0)


@pytest.mark.parametrize("encode", [False, True])
def test_an_unknown_word_is_named_where_it_is_an_error(encode):
    strict = Vocabulary(["a", "b"], oov="error")
    array = pa.array(["a", "x", "b", "a", None])
    array = array.dictionary_encode() if encode else array
    with pytest.raises(ValueError, match="does not know 'x'"):
        strict(array)
    assert strict(array.slice(2)).to_pylist() == [2, 1, None]  # 'x' is still in the dictionary, unused


def test_a_null_inside_a_dictionary_is_not_an_unknown_word():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["a", None]))
    assert Vocabulary(["a"], oov="error")(array).to_pylist() == [1, None, None, 1]
    numbers = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array([7, None]))
    assert Modulo(5)(numbers).to_pylist() == [2, None, None, 2]


def test_a_vocabulary_survives_pickling():
    copy = pickle.loads(pickle.dumps(Vocabulary(["a", "b"])))
    assert copy == Vocabulary(["a", "b"])
    assert copy(pa.array(["b"])).to_pylist() == [2]


# Cross


def word(value):
    return xxh(value) if isinstance(value, str) else value


def cross_oracle(a, b, buckets):
    if a is None or b is None:
        return None
    ident = xxh(struct.pack("<qq", word(a), word(b)))
    return ident if buckets is None else ident % buckets


def pairs_oracle(a, b, a_list, b_list, buckets):
    if not a_list and not b_list:
        return cross_oracle(a, b, buckets)
    if (a_list and a is None) or (b_list and b is None):
        return None
    left, right = a if a_list else [a], b if b_list else [b]
    return [cross_oracle(x, y, buckets) for x in left for y in right]


@given(st.data())
def test_cross_hashes_every_pair_of_a_row(data):
    ids = st.integers(-(2**63), 2**63 - 1)
    left = data.draw(columns(ids, pa.int64(), max_depth=1))
    right = data.draw(columns(WORDS, pa.string(), max_depth=1))
    buckets = data.draw(st.none() | st.integers(1, 1000))
    rows = min(len(left), len(right))
    left, right = left.slice(0, rows), right.slice(0, rows)
    cross = Cross("l", "r", buckets=buckets)
    result = cross(left, right)
    result.validate(full=True)
    assert result.type == cross.output(left.type, right.type)
    a_list, b_list = pa.types.is_nested(left.type), pa.types.is_nested(right.type)
    expected = [
        pairs_oracle(a, b, a_list, b_list, buckets)
        for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)
    ]
    assert result.to_pylist() == expected


def test_cross_depends_on_the_order_of_its_columns_and_on_the_seed():
    a, b = pa.array([1]), pa.array([2])
    assert (
        len(
            {
                c.to_pylist()[0]
                for c in (Cross("l", "r")(a, b), Cross("l", "r")(b, a), Cross("l", "r", seed=1)(a, b))
            }
        )
        == 3
    )


def test_cross_of_fixed_size_lists_stays_fixed():
    left = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    assert Cross("l", "r")(left, pa.array([3, 4])).type == pa.list_(pa.int64(), 2)
    assert Cross("l", "r")(left, left).type == pa.list_(pa.int64(), 4)


def test_cross_names_its_column_after_both_unless_told():
    assert Cross("user", "item").name == "user_x_item"
    assert Cross("user", "item", name="pair").name == "pair"


def test_cross_refuses_columns_of_other_lengths_and_kinds():
    with pytest.raises(ValueError, match="2 and 1 rows"):
        Cross("l", "r")(pa.array([1, 2]), pa.array([1]))
    with pytest.raises(TypeError, match=r"column 'r' is double"):
        Cross("l", "r")(pa.array([1]), pa.array([0.5]))
    with pytest.raises(TypeError, match=r"column 'l' is list"):
        Cross("l", "r")(pa.array([[[1]]]), pa.array([1]))


# All of them

EXAMPLES = [
    Hash(3),
    Modulo(10),
    Bucketize([0, 1.5]),
    Log1p(),
    Standardize(1, 2.5),
    Clip(0, None),
    Truncate(3, "last"),
    Vocabulary(["a", "b"], oov="error"),
    Vocabulary([4, 2**63], oov=0),
    Cross("a", "b", buckets=7),
]


@pytest.mark.parametrize("transform", EXAMPLES, ids=repr)
def test_a_transform_round_trips_through_json(transform):
    text = json.dumps(transform.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == transform


def test_every_op_is_an_example():
    assert {example.op for example in EXAMPLES} == set(OPS)


@pytest.mark.parametrize("transform", [e for e in EXAMPLES if not isinstance(e, Cross | Truncate)], ids=repr)
@pytest.mark.parametrize("nest", [lambda k: k, pa.list_, pa.large_list, lambda k: pa.list_(pa.list_(k), 2)])
def test_empty_and_all_null_columns_pass(transform, nest):
    kind = nest(pa.string() if transform.to_json().get("values") == ["a", "b"] else pa.int32())
    for array in (
        pa.array([], kind),
        pa.nulls(3, kind),
        pa.nulls(3, kind).slice(1, 1),
        pa.nulls(2, nest(pa.null())),
    ):
        result = transform(array)
        result.validate(full=True)
        assert result.type == transform.output(array.type)
        assert result.to_pylist() == array.to_pylist()


@pytest.mark.parametrize(
    ("transform", "array"),
    [
        (Hash(), pa.array([0.5])),
        (Modulo(3), pa.array(["a"])),
        (Modulo(3), pa.array([[0.5]])),
        (Bucketize([1]), pa.array(["a"])),
        (Log1p(), pa.array(["a"])),
        (Standardize(0, 1), pa.array([[["a"]]])),
        (Clip(0, 1), pa.array(["a"]).dictionary_encode()),
        (Vocabulary(["a"]), pa.array([1])),
        (Vocabulary([1]), pa.array(["a"])),
        (Vocabulary([1]), pa.array([{"a": 1}])),
    ],
    ids=lambda v: repr(v) if not isinstance(v, pa.Array) else str(v.type),
)
def test_a_column_of_the_wrong_type_is_named(transform, array):
    kind = array.type
    while pa.types.is_list(kind):
        kind = kind.value_type
    with pytest.raises(TypeError, match=r"takes .*, not a column of type") as error:
        transform(array)
    assert str(kind) in str(error.value)
    assert repr(transform) in str(error.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Modulo(0), ValueError, "modulo: n is 0"),
        (lambda: Modulo(-4), ValueError, "modulo: n is -4"),
        (lambda: Modulo(2**63), ValueError, "from 1 to"),
        (lambda: Modulo(2.0), TypeError, "whole number"),
        (lambda: Modulo(True), TypeError, "whole number"),
        (lambda: Hash(-1), ValueError, "seed -1"),
        (lambda: Truncate(0), ValueError, "truncate: n is 0"),
        (lambda: Truncate(1, "middle"), ValueError, "valid are 'first', 'last'"),
        (lambda: Bucketize([]), ValueError, "boundaries is empty"),
        (lambda: Bucketize([math.nan]), ValueError, "must be finite"),
        (lambda: Bucketize("123"), TypeError, "must be a list"),
        (lambda: Bucketize(["1"]), TypeError, "must be a number"),
        (lambda: Standardize(0, 0), ValueError, "std is 0"),
        (lambda: Standardize(0, -1), ValueError, "std is -1"),
        (lambda: Standardize(math.inf, 1), ValueError, "mean is inf"),
        (lambda: Clip(2, 1), ValueError, "low 2 is above high 1"),
        (lambda: Clip(), ValueError, "neither low nor high"),
        (lambda: Clip(math.nan, 1), ValueError, "low is nan"),
        (lambda: Vocabulary([]), ValueError, "values is empty"),
        (lambda: Vocabulary(["a", "b", "a"]), ValueError, "key 'a' occurs 2 times"),
        (lambda: Vocabulary([1, 2, 1]), ValueError, "key 1 occurs 2 times"),
        (lambda: Vocabulary(["a", 1]), TypeError, "1 does not fit"),
        (lambda: Vocabulary([0.5]), TypeError, "0.5 does not fit"),
        (lambda: Vocabulary([-1, 2**63]), ValueError, "one 64-bit type"),
        (lambda: Vocabulary(["a", "b"], oov=2), ValueError, "oov 2 is the id of 'b'"),
        (lambda: Vocabulary(["a"], oov="drop"), TypeError, "oov is 'drop'"),
        (lambda: Cross("a", "b", buckets=0), ValueError, "buckets is 0"),
        (lambda: Cross("a", 3), TypeError, "right is 3"),
        (lambda: from_json({"op": "sqrt"}), ValueError, r"unknown transform 'sqrt'; ops are hash, modulo"),
        (lambda: from_json({"n": 3}), ValueError, "an object with an 'op'"),
        (lambda: from_json({"op": "modulo", "n": 3, "m": 1}), ValueError, "modulo has no m; its keys are n"),
        (lambda: from_json({"op": "vocabulary", "values": ["a"], "_index": 1}), ValueError, "has no _index"),
        (lambda: from_json({"op": "modulo"}), TypeError, "modulo: .*missing"),
    ],
)
def test_an_invalid_parameter_is_an_error_that_names_it(make, error, message):
    with pytest.raises(error, match=message):
        make()
