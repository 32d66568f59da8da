"""Layouts of one shape are made once, whatever else is asked for between."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="layouts name what kernels know")

from hybridrec.embedding.gpu.layout import MOST_LAYOUTS, Layout, Shapes, TableFacts
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.features import of as line
from hybridrec.ops.row_groups.triton import Sizes, _refuse_too_many, group_rows

SPECS = [
    FeatureSpec("a", "t0", "sum"),
    FeatureSpec("b", "t1", "none", group=2),
    FeatureSpec("c", "t0", "max"),
    FeatureSpec("d", "t2", "mean"),
    FeatureSpec("e", "t1", "none"),
]
WIDTHS = [4, 3, 4, 8, 3]
STARTS, COUNTS = [0, 6, 16, 22, 25], [6, 10, 6, 3, 5]


def shapes(base: int = 0) -> Shapes:
    facts = [TableFacts(n, base + n, 10 + n, 100 * n, width, torch.float32) for n, width in enumerate(WIDTHS)]
    return Shapes(SPECS, facts, [2, 1, None, 1, 1], [0, 0, 0, 0, 0], 3, torch.device("cpu"), Sizes())


def same(one: Layout, other: Layout) -> bool:
    pairs = [(getattr(one, each.name), getattr(other, each.name)) for each in fields(Layout) if each.name != "classes"]
    classes = [vars(a) == vars(b) for a, b in zip(one.classes, other.classes, strict=True)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs) and all(classes)


def test_a_shape_that_comes_again_has_the_very_layout() -> None:
    mine = shapes()
    first = mine.layout(STARTS, COUNTS)
    other = mine.layout([0, 6, 14, 20, 23], [6, 8, 6, 3, 5])
    assert mine.layout(STARTS, COUNTS) is first
    assert not same(first, other)
    assert same(other, shapes().layout([0, 6, 14, 20, 23], [6, 8, 6, 3, 5]))


def test_lines_have_the_ids_of_their_features_and_sequences_lie_behind_what_is_pooled() -> None:
    found = shapes().layout(STARTS, COUNTS)
    for number, (start, count) in enumerate(zip(STARTS, COUNTS, strict=True)):
        mine = found.features[found.order.index(number)]
        assert (int(mine[line.START]), int(mine[line.COUNT])) == (start, count)
    pooled = 3 * (4 + 4 + 8)
    assert [(rows, begin) for _, rows, begin in found.sequences] == [(5, pooled), (5, pooled + 15)]
    assert found.features.data_ptr() % 16 == found.first_programs.data_ptr() % 16 == found.lists.data_ptr() % 16


def test_tables_that_lie_elsewhere_change_nothing_else() -> None:
    mine = shapes()
    kept = mine.layout(STARTS, COUNTS)
    rows = np.array([[5000 + n, 10 + n, 100 * n] for n in range(len(WIDTHS))])
    assert same(mine.layout(STARTS, COUNTS, rows), shapes(5000).layout(STARTS, COUNTS))
    assert same(mine.layout(STARTS, COUNTS), kept)


def test_few_layouts_are_kept() -> None:
    mine = shapes()
    for n in range(2 * MOST_LAYOUTS):
        mine.layout(STARTS, [6, 10, 6, 3, n])
    assert len(mine._made) <= MOST_LAYOUTS


def test_each_class_has_sums_for_chunks_of_its_own_ids_alone() -> None:
    counts = [600, 1000, 600, 300, 500]
    found = shapes().layout([0, 600, 1600, 2200, 2500], counts)
    ids = {3: 1500, 4: 1200, 8: 300}
    chunks = {dim: n // (Sizes().few + 1) + n // Sizes().chunk + 1 for dim, n in ids.items()}
    assert [found.sums(number) for number in range(3)] == [dim * chunks[dim] for dim in (3, 4, 8)]
    assert found.chunks == sum(chunks.values())


@pytest.mark.parametrize(("hotness", "fits"), [(212, True), (230, False)])
def test_more_ids_than_places_can_be_numbered_are_refused_before_any_is_grouped(hotness: int, fits: bool) -> None:
    batch, none = 1 << 20, torch.empty(0)
    specs = [FeatureSpec("a", "t0", "sum"), FeatureSpec("b", "t1", "sum")]
    facts = [TableFacts(n, 0, 10**6, n * 10**6, 16 << n, torch.float32) for n in range(2)]
    made = Shapes(specs, facts, [hotness, 1], [0, 0], batch, torch.device("cpu"), Sizes())
    layout = made.layout([0, hotness * batch], [hotness * batch, batch])
    last = layout.chunks * layout.sizes.chunk - 1 + line.MANY  # what the last place of all is marked with
    assert (last < 2**31) is fits
    if fits:
        return _refuse_too_many(layout)
    told = r"1048576 rows has 242221056 ids .* about 225\d{6} are possible on a GPU; take smaller batches"
    with pytest.raises(ValueError, match=told):
        group_rows(none, layout, none, none, none)
