"""Every launch of a row update compiles for a card, and no warp loads a row or state that another has stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding.gpu.layout import Shapes, TableFacts
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.row_groups.triton import Sizes, group_rows
from hybridrec.ops.row_update.numbers import RULES
from hybridrec.ops.row_update.triton import update_groups, update_listed
from tests.gpu import INTERPRETED
from tests.ops.compiled import launches_only_compile

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

CPU, IDS, ROWS = torch.device("cpu"), 9, 40
BY_RULE = [(rule, 16, torch.float32) for rule in RULES]
# A row has a part of a warp, one or several; three numbers are no multiple of four.
ONE_NUMBER_PER_ROW = [("rowwise_adagrad", dim, torch.float32) for dim in (1, 3, 128, 300, 1024)]
HALF = [("rowwise_adagrad", 300, torch.bfloat16), ("adam", 5, torch.float16), ("adam", 1024, torch.bfloat16)]


@pytest.mark.parametrize(("rule", "dim", "dtype"), [*BY_RULE, *ONE_NUMBER_PER_ROW, *HALF], ids=str)
def test_rows_take_their_steps(rule: str, dim: int, dtype: torch.dtype, tmp_path: Path) -> None:
    compile_update(rule, dim, dtype, tmp_path, capability=90)


def test_rows_of_bfloat16_take_their_steps_on_a_card_that_does_not_compute_in_it(tmp_path: Path) -> None:
    compile_update("adagrad", 16, torch.bfloat16, tmp_path, capability=75)
    made = [file.read_text() for file in tmp_path.rglob("*.ptx")]
    assert len(made) == 8
    assert all(".target sm_75" in each and "bf16" not in each for each in made)


def compile_update(rule: str, dim: int, dtype: torch.dtype, cache: Path, capability: int) -> None:
    table = TableFacts(0, 0, ROWS, 0, dim, dtype)
    layout = Shapes([FeatureSpec("a", "t", "sum")], [table], [1], [0], IDS, CPU, Sizes()).layout([0], [IDS])
    ids, numbers, lines = torch.arange(IDS), torch.zeros(64), torch.zeros(64, dtype=torch.int64)
    to = lines, numbers, lines, numbers
    with launches_only_compile(cache, capability) as compiled:
        places, bases = torch.zeros(ROWS, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        groups = group_rows(ids, layout, places, bases, places)
        update_groups(groups, torch.zeros(IDS * dim), torch.zeros(layout.sums(0)), 0, rule, *to, norm=False)
        update_listed(ids, torch.zeros(IDS, dim), 0, dtype, rule, *to, norm=False)
    grouping = {"count_occurrences", "list_rows", "place_occurrences", "clear_places"}
    assert compiled == grouping | {"update_single", "update_few", "sum_chunks", "update_many"}
