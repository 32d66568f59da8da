from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding.columns import side_by_side
from hybridrec.embedding.queue import FeatureSpec

FEATURES = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["sum", "none"]), st.booleans()), max_size=8)


@given(FEATURES)
def test_runs_bring_every_column_of_some_features_to_its_place_among_all(drawn):
    specs = [FeatureSpec(str(i), str(i), combiner) for i, (_, combiner, _) in enumerate(drawn)]
    columns = side_by_side(specs, [dim for dim, _, _ in drawn])
    named = [(i, c) for i, (dim, combiner, _) in enumerate(drawn) if combiner != "none" for c in range(dim)]
    assert columns.width == len(named)
    mine = [i for i, (_, _, chosen) in enumerate(drawn) if chosen]
    alone = [one for one in named if one[0] in mine]
    runs = columns.select(mine).runs()
    brought = {run.to + i: alone[run.begin + i] for run in runs for i in range(run.width)}
    assert brought == {place: one for place, one in enumerate(named) if one[0] in mine}
    assert all(run.to > last.to + last.width for last, run in pairwise(runs))
