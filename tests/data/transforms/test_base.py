from __future__ import annotations

import math

import pyarrow as pa
import pytest

from hybridrec.data.transforms import (
    Bucketize,
    Clip,
    Cross,
    Hash,
    IsIn,
    Log1p,
    Modulo,
    Standardize,
    Transform,
    Truncate,
    Vocabulary,
)
from tests.data.transforms.columns import xxh
from tests.data.transforms.examples import EXAMPLES


def test_bools_count_as_zero_and_one():
    array = pa.array([True, None, False, True]).slice(1)
    assert Modulo(5)(array).to_pylist() == [None, 0, 1]
    assert Clip(1, None)(array).to_pylist() == [None, 1, 1]
    assert Log1p()(array).to_pylist() == [None, 0.0, math.log(2)]
    assert Hash()(array).to_pylist() == [None, xxh(0), xxh(1)]
    assert Vocabulary([1])(array).to_pylist() == [None, 0, 1]
    assert IsIn([1])(array).to_pylist() == [None, 0.0, 1.0]


def test_a_null_inside_a_dictionary_is_null():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array([7, None]))
    assert Modulo(5)(array).to_pylist() == [2, None, None, 2]
    assert Hash()(array).to_pylist() == [xxh(7), None, None, xxh(7)]


@pytest.mark.parametrize("example", EXAMPLES, ids=repr)
def test_all_but_the_cross_are_transforms_of_one_column(example):
    assert isinstance(example, Transform) != isinstance(example, Cross)


@pytest.mark.parametrize("transform", [e for e in EXAMPLES if not isinstance(e, Cross | Truncate)], ids=repr)
@pytest.mark.parametrize("nest", [lambda k: k, pa.list_, pa.large_list, lambda k: pa.list_(pa.list_(k), 2)])
def test_empty_and_all_null_columns_pass(transform, nest):
    words = isinstance(transform.to_json().get("values", [0])[0], str)
    kind = nest(pa.string() if words else pa.int32())
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
        (IsIn(["a"]), pa.array([[1]])),
        (IsIn([1]), pa.array(["a"]).dictionary_encode()),
        (IsIn([1]), pa.array([1.0])),
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
