from __future__ import annotations

import json

import pyarrow as pa
import pytest

from hybridrec.data.arrow_types import (
    element_type,
    fixed_size,
    is_list,
    is_number,
    is_text,
    is_whole,
    list_depth,
    plain_type,
    type_from_json,
    type_to_json,
    without_dictionary,
    without_views,
)

WORDS = pa.dictionary(pa.int32(), pa.string())
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
TEXT = [*STRINGS, pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]
WHOLE = [
    pa.int8(),
    pa.uint64(),
    pa.bool_(),
    pa.date32(),
    pa.time64("us"),
    pa.timestamp("s", "UTC"),
    pa.duration("ms"),
]
FRACTIONS = [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal256(50, 3)]
LISTS = [
    pa.list_(pa.int8()),
    pa.large_list(pa.string()),
    pa.list_(pa.float32(), 4),
    pa.list_(pa.list_(WORDS)),
]
OTHERS = [pa.null(), pa.struct({"a": pa.int8()}), pa.month_day_nano_interval()]


@pytest.mark.parametrize("kind", [*TEXT, *WHOLE, *FRACTIONS, *LISTS, *OTHERS], ids=str)
def test_each_type_is_of_the_kinds_it_belongs_to(kind):
    assert is_text(kind) == (kind in TEXT)
    assert is_whole(kind) == (kind in WHOLE)
    assert is_number(kind) == (kind in [*WHOLE, *FRACTIONS, pa.null()])
    assert is_list(kind) == (kind in LISTS)


def test_lists_and_dictionaries_come_off_a_type():
    deep = pa.list_(pa.large_list(WORDS), 3)
    assert (list_depth(deep), list_depth(WORDS)) == (2, 0)
    assert element_type(deep) == pa.string()
    assert (fixed_size(deep), fixed_size(pa.list_(deep))) == (3, None)
    assert without_dictionary(WORDS) == pa.string()
    assert without_dictionary(deep) == deep


def test_views_give_way_to_large_strings_inside_lists_too():
    assert without_views(pa.string_view()) == pa.large_string()
    assert without_views(pa.list_(pa.large_list(pa.binary_view()), 2)) == pa.list_(pa.large_list(pa.large_binary()), 2)
    assert without_views(pa.list_(pa.string())) == pa.list_(pa.string())
    assert without_views(WORDS) == WORDS


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.list_(WORDS), pa.list_(pa.string())),
        (pa.large_list(pa.large_binary()), pa.list_(pa.binary())),
        (pa.list_(pa.string_view(), 2), pa.list_(pa.string(), 2)),
        (pa.int32(), pa.int32()),
    ],
    ids=str,
)
def test_a_plain_type_has_one_kind_of_list_and_string(kind, plain):
    assert plain_type(kind) == plain


def test_types_that_differ_in_width_or_size_stay_apart():
    assert plain_type(pa.int32()) != plain_type(pa.int64())
    assert plain_type(pa.list_(pa.int8(), 2)) != plain_type(pa.list_(pa.int8()))


@pytest.mark.parametrize(
    "kind",
    [*WHOLE, *FRACTIONS, *LISTS, WORDS, pa.string(), pa.binary(), pa.binary(3), pa.null(), OTHERS[1]],
    ids=str,
)
def test_a_type_round_trips_through_json(kind):
    assert type_from_json(json.loads(json.dumps(type_to_json(kind)))) == kind


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("int65", "'int65' is not the name of an Arrow type"),
        ({"tree": "int8"}, "does not describe an Arrow type"),
    ],
)
def test_json_that_is_no_type_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        type_from_json(made)
