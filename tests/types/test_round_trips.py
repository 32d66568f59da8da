"""Every conversion there and back, on random nests."""

from __future__ import annotations

import copy
import pickle
from itertools import chain

import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.types import IdBlock, Ragged

INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = {
    "int64": INT64,
    "float32": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(),
    "utf8": st.text(max_size=4),
    "binary": st.binary(max_size=4),
}
ARROW = {
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bool": pa.bool_(),
    "utf8": pa.string(),
    "binary": pa.binary(),
}


def nests(leaf: st.SearchStrategy, depth: int) -> st.SearchStrategy:
    """Rows nested `depth` deep, with empty lists at every level."""
    for _ in range(depth):
        leaf = st.lists(leaf, max_size=4)
    return st.lists(leaf, max_size=5)


def all_kinds(least: int = 1) -> st.SearchStrategy:
    """(kind of scalar, depth, rows)."""
    kinds = st.tuples(st.sampled_from(sorted(SCALARS)), st.integers(least, 3))
    return kinds.flatmap(lambda k: st.tuples(st.just(k[0]), st.just(k[1]), nests(SCALARS[k[0]], k[1])))


FEATURES = st.integers(0, 5).flatmap(
    lambda rows: st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.lists(INT64, max_size=4), min_size=rows, max_size=rows),
        min_size=1,
    )
)


@given(all_kinds())
def test_lists_come_back_as_they_were(case):
    assert Ragged.from_lists(case[2]).to_list() == case[2]


@given(all_kinds(), st.booleans())
def test_arrow_lists_come_back_as_they_were(case, large):
    kind, depth, rows = case
    arrow = ARROW[kind]
    for _ in range(depth):
        arrow = pa.large_list(arrow) if large else pa.list_(arrow)
    ragged = Ragged.from_arrow(pa.array(rows, arrow)).check()
    assert ragged.to_list() == rows
    assert ragged.depth == depth
    assert ragged.to_arrow().to_pylist() == rows
    ragged.to_arrow().validate(full=True)
    assert Ragged.from_arrow(ragged.to_arrow()).equal(ragged)


@given(st.lists(st.text(max_size=5)), st.booleans())
def test_arrow_strings_come_back_as_they_were(rows, large):
    ragged = Ragged.from_arrow(pa.array(rows, pa.large_string() if large else pa.string()))
    assert (ragged.to_list(), ragged.depth) == (rows, 0)
    assert ragged.to_arrow().to_pylist() == rows


@given(all_kinds(), st.data())
def test_a_slice_of_an_arrow_array_converts_to_just_its_rows(case, data):
    kind, depth, rows = case
    arrow = ARROW[kind]
    for _ in range(depth):
        arrow = pa.list_(arrow)
    start = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - start))
    ragged = Ragged.from_arrow(pa.array(rows, arrow).slice(start, count)).check()
    assert ragged.to_list() == rows[start : start + count]


@given(all_kinds(), st.data())
def test_slices_and_rows_are_those_of_the_lists(case, data):
    rows = case[2]
    ragged = Ragged.from_lists(rows)
    start, stop = data.draw(st.integers(-6, 6)), data.draw(st.integers(-6, 6))
    part = ragged[start:stop].check()
    assert part.to_list() == rows[start:stop]
    shown = [row.to_list() if isinstance(row, Ragged) else row.tolist() for row in ragged]
    assert shown == rows


@given(st.integers(1, 3).flatmap(lambda depth: nests(INT64, depth)))
def test_padded_tensors_come_back_with_their_lengths(rows):
    ragged = Ragged.from_lists(rows)
    lengths, level, path = [], ragged, []
    while isinstance(level, Ragged):  # the lengths of each level, padded like the levels above it
        counts = level.lengths()
        for above in reversed(path):
            counts = Ragged(counts, above)
        lengths.append(counts.to_padded() if isinstance(counts, Ragged) else counts)
        path.append(level.offsets)
        level = level.values
    padded = ragged.to_padded()
    assert padded.dim() == ragged.depth + 1
    assert Ragged.from_padded(padded, lengths).equal(ragged)


@given(nests(INT64, 1), st.integers(0, 5))
def test_padding_to_a_length_cuts_and_fills_each_row(rows, length):
    expected = [(row[:length] + [-1] * length)[:length] for row in rows]
    assert Ragged.from_lists(rows).to_padded(length, value=-1).tolist() == expected


@given(nests(INT64, 1))
def test_nested_tensors_come_back_as_they_were(rows):
    ragged = Ragged.from_lists(rows)
    nested = ragged.to_nested()
    assert [row.tolist() for row in nested.unbind()] == rows
    assert Ragged.from_nested(nested).equal(ragged)


@given(nests(st.integers(-2, 2), 1))
def test_sparse_tensors_come_back_as_they_were_zeros_included(rows):
    ragged = Ragged.from_lists(rows)
    assert Ragged.from_sparse(ragged.to_sparse()).equal(ragged)


@given(nests(st.integers(1, 9), 2))
def test_deep_sparse_tensors_hold_each_value_at_its_row_and_positions(rows):
    ragged = Ragged.from_lists(rows)
    assert torch.equal(ragged.to_sparse().to_dense(), ragged.to_padded())


@given(FEATURES)
def test_packed_features_come_back_as_they_were(features):
    block = IdBlock.from_lists(features).check()
    assert {name: block[name].to_list() for name in block} == features
    assert block.hotness == (None,) * len(features)


@given(FEATURES)
def test_keyed_jagged_parts_come_back_as_they_were(features):
    block = IdBlock.from_lists(features)
    keys, values, lengths, weights = block.to_kjt()
    assert lengths.tolist() == [len(row) for rows in features.values() for row in rows]
    assert values.tolist() == list(chain.from_iterable(row for rows in features.values() for row in rows))
    assert IdBlock.from_kjt(keys, values, lengths.int(), weights).equal(block)


@given(FEATURES, st.data())
def test_a_selection_has_the_chosen_features_in_the_chosen_order(features, data):
    names = data.draw(st.permutations(sorted(features)).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: p[:n])))
    chosen = IdBlock.from_lists(features).select(names).check()
    assert list(chosen) == names
    assert chosen.batch_size == IdBlock.from_lists(features).batch_size
    assert [chosen[name].to_list() for name in names] == [features[name] for name in names]


@given(all_kinds(), FEATURES)
def test_pickles_and_deep_copies_are_equal_and_apart(case, features):
    for thing in (Ragged.from_lists(case[2]), IdBlock.from_lists(features)):
        for twin in (pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing)):
            assert twin.equal(thing)
            assert type(twin) is type(thing)
            assert twin.offsets.data_ptr() != thing.offsets.data_ptr() or thing.offsets.numel() == 0
