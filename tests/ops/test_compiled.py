"""Every launch of dynamic and tiered tables compiles for a card, whatever the types and addresses that it is given;
those that route ids to ranks do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.hash_index import triton as hash_index
from hybridrec.ops.hash_index.spans import of_counts
from hybridrec.ops.hash_rows import triton_rows
from hybridrec.ops.hash_rows.lines import home_of
from hybridrec.ops.hash_rows.triton_rows import HashRows, Policy, TableSlots
from hybridrec.ops.id_routes import triton as id_routes
from hybridrec.ops.id_routes.lines import of as routed
from hybridrec.ops.row_cache import triton as row_cache
from hybridrec.ops.row_cache import triton_ids
from hybridrec.ops.row_cache.cache import Sizes
from hybridrec.ops.row_cache.runs import Run, Runs
from tests.gpu import INTERPRETED
from tests.ops.compiled import launches_only_compile
from tests.ops.row_cache.caches import made

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

CPU = torch.device("cpu")


@pytest.fixture
def compiled(tmp_path: Path) -> Iterator[set[str]]:
    with launches_only_compile(tmp_path) as names:
        yield names


@pytest.mark.parametrize(("aligned", "few"), [(True, triton_rows.FEW), (False, triton_rows.FEW), (True, 0)])
def test_a_batch_of_dynamic_tables_compiles(
    compiled: set[str], aligned: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_rows, "FEW", few)  # ids of a batch, beyond which programs are larger
    rows = HashRows.empty([Policy(100), Policy(100, "lfu", min_count=2)], CPU)
    spans, homes = of_counts([700, 9, 700], [0, 1, 0], CPU), torch.zeros(2, home_of.LENGTH, dtype=torch.int64)
    if not aligned:  # a store of a group, for itself
        rows, spans, homes = rows.part(1), of_counts([1409], [0], CPU), homes[1:]
    ids = torch.arange(1410)[:-1] if aligned else torch.arange(1410)[1:]
    rows.prepare(ids, spans, homes=homes, force=not aligned)
    rows.find(ids, spans)
    assert {"look_up", "want", "bear", "evict", "close_batch"} <= compiled


def test_a_batch_whose_entries_move_to_a_larger_index_compiles(
    compiled: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 1)
    rows = HashRows({0: TableSlots(Policy(100), CPU, slots=50)}, 1, CPU)
    ids, spans = torch.arange(40), of_counts([40], [0], CPU)
    rows.grow(0, 100)
    rows.find(ids, spans)
    rows.prepare(ids, spans)
    assert rows.tables[0].moving is not None
    assert {"look_up", "move_entries"} <= compiled


def test_an_index_compiles(compiled: set[str]) -> None:
    index, lacking = hash_index.empty(40, CPU), torch.zeros(1, dtype=torch.int32)
    ids, spans, lines = torch.arange(70), of_counts([30, 40], [0, 1], CPU), hash_index.lines_of([index, None], CPU)
    hash_index.insert(ids, hash_index.find(ids, spans, lines), spans, lines, lacking)
    hash_index.erase(ids, ids, spans, lines)
    hash_index.rehash(index, hash_index.empty(1, CPU), lacking)
    assert compiled == {"find_slots", "insert_slots", "erase_slots", "move_entries"}


@pytest.mark.parametrize("any_ids", [False, True])
def test_routes_of_ids_compile(compiled: set[str], any_ids: bool) -> None:
    borders = torch.tensor([0, 5, 10]) + (2**31 if any_ids else 0)
    order = id_routes.Segments(borders[:2], borders, torch.tensor([0]), int(borders[-1]))
    policy = routed.ANY if any_ids else routed.HASH
    lines = torch.tensor([[0, 700, 0, 10, policy, 2, 0, 0, 0], [700, 9, 700, 10, policy, 1, routed.NOT_ASKED, 1, 0]])
    ids, programs = torch.arange(709), torch.tensor([0, 2, 3], dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:  # what a launch that ran would have written
        patch.setattr(torch, "empty", torch.zeros)
        id_routes.route(ids, lines, programs, 3, (700, 9, 2), order, id_routes.numbers_of(ids, [(0, 700)]))
    assert compiled == {"route_ids", "number_ids"}


KEPT = [(5, torch.float32, None), (64, torch.float32, torch.int8), (64, torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("dim", "dtype", "kept"), [*KEPT, (18, torch.float16, None)], ids=str)
def test_rows_of_two_tiers_compile(compiled: set[str], dim: int, dtype: torch.dtype, kept: torch.dtype | None) -> None:
    cache = made(2000, 400, [torch.zeros(2000, dim, dtype=dtype)], CPU, Sizes(), kept)
    runs = Runs.make([Run(0, 9, 1000, 0), Run(20, 9, 1000, 1000, hashed=True)], CPU, ids=256)
    ids = torch.arange(40)
    slots, number = row_cache.admit(cache, triton_ids.rows_of(ids, runs))
    triton_ids.put_slots(ids, runs, slots, cache.slots, torch.empty_like(ids))
    row_cache.land(cache, number)
    row_cache.write(cache, 0, ids, row_cache.read(cache, 0, ids))
    packed = {"exchange_packed", "read_packed", "write_packed"}
    assert packed <= compiled if kept else {"exchange_rows", "read_rows", "write_rows"} <= compiled
