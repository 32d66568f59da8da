"""Grouping compiles for a card as batches of many programs launch it, and no warp loads what another has stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding.gpu.layout import Shapes, TableFacts
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.row_groups.triton import Sizes, group_rows
from tests.gpu import INTERPRETED
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

CPU, ROWS = torch.device("cpu"), 40


@pytest.mark.parametrize(("ids", "sorted_ids", "weighted"), [(65_000, 256, False), (1 << 20, 512, True)])
def test_ids_of_several_features_are_grouped(ids: int, sorted_ids: int, weighted: bool, tmp_path: Path) -> None:
    features, combiner, hotness = range(3), "mean" if weighted else "sum", None if weighted else 1
    shapes = Shapes(
        [FeatureSpec(str(n), str(n), combiner) for n in features],
        [TableFacts(n, 0, ROWS, ROWS * n, 16, torch.float32) for n in features],
        *([hotness for _ in features], list(features), ids, CPU, Sizes()),
    )
    layout = shapes.layout([ids * n for n in features], [ids for _ in features])
    assert layout.sizes.ids == sorted_ids
    values, bag_of = torch.zeros(3 * ids, dtype=torch.int64), torch.zeros(3 * ids, dtype=torch.int32)
    shares = (torch.zeros(3, ids), torch.zeros(3 * ids)) if weighted else (None, None)
    places, bases = torch.zeros(3 * ROWS, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    with launches_only_compile(tmp_path) as compiled:
        group_rows(values, layout, places, bases, bag_of, *shares)
    assert compiled == {"count_occurrences", "list_rows", "place_occurrences", "clear_places"}
