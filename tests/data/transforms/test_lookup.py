from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.transforms import IsIn, Vocabulary
from tests.data.transforms.columns import INTEGERS, WORDS, check, columns, numbers_of


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


def test_a_vocabulary_survives_pickling():
    copy = pickle.loads(pickle.dumps(Vocabulary(["a", "b"])))
    assert copy == Vocabulary(["a", "b"])
    assert copy(pa.array(["b"])).to_pylist() == [2]


def test_a_null_inside_a_dictionary_is_not_an_unknown_word():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["a", None]))
    assert Vocabulary(["a"], oov="error")(array).to_pylist() == [1, None, None, 1]
    assert IsIn(["b"])(array).to_pylist() == [0.0, None, None, 0.0]


@given(columns(WORDS, pa.string()), st.lists(WORDS, min_size=1, unique=True))
def test_is_in_is_one_for_the_stated_words_alone(array, words):
    check(IsIn(words), array, lambda v: float(v in words))


@pytest.mark.parametrize("name", INTEGERS)
@given(st.data())
def test_is_in_meets_integers_of_any_width_by_value(name, data):
    array = data.draw(columns(numbers_of(name) | st.integers(0, 3), pa.type_for_alias(name)))
    known = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
    words = data.draw(st.lists(known, min_size=1, unique=True) | st.just([2**64 - 1, 0]))
    check(IsIn(words), array, lambda v: float(v in words))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.string_view(), pa.binary_view()], ids=str)
def test_is_in_takes_text_of_every_layout(kind):
    result = IsIn([">50K"])(pa.array([">50K", ">50K.", "", None]).cast(kind))
    assert result.type == pa.float32()
    assert result.to_pylist() == [1.0, 0.0, 0.0, None]


def test_is_in_looks_through_lists_of_dictionaries():
    items = pa.array(["a", "b", None, "a"]).dictionary_encode()
    array = pa.ListArray.from_arrays(pa.array([0, 3, 3, 4], pa.int32()), items)
    assert IsIn(["a"])(array).to_pylist() == [[1.0, 0.0, None], [], [1.0]]


def test_a_long_list_of_values_is_cut_short_where_it_is_printed():
    assert repr(IsIn([">50K"])) == "IsIn(['>50K'])"
    assert repr(IsIn(range(1000))) == "IsIn([0, 1, 2, ...])"
    assert repr(Vocabulary(range(1000))) == "Vocabulary(1000 values: 0, 1, 2, ...; oov=0)"
