"""NCCL with a single rank: what needs a card of its own for each rank, as far as one card can show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import INTERPRETED
from tests.parallel.equality import compare
from tests.parallel.gpu import small
from tests.parallel.gpu.test_dynamic import case as dynamic
from tests.parallel.gpu.test_tiers import case as tiered
from tests.parallel.jobs.training import run, sharded, train_alone

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="NCCL needs a CUDA device"),
    pytest.mark.skipif(not distributed.is_nccl_available(), reason="this torch was built without NCCL"),
]


@pytest.fixture
def joined() -> Iterator[None]:
    """This process as the only rank of a group with NCCL."""
    store = HashStore()
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("scheme", ["mixed", "row", "table", "column", "replicated"])
@pytest.mark.parametrize("more", [{}, {"weighted": True, "learned": True}, {"ahead": True}], ids=str)
def test_one_rank_with_nccl_equals_one_process(joined: None, scheme: str, more: dict[str, Any]) -> None:
    case = small.case(1, scheme, **more)
    model = sharded(case)
    groups = [part.group for part in model.module.embedded.parts]
    assert [group.transport.name for group in groups] == ["nccl"]
    compare(case, [run(case, model, [0])], train_alone(case))


@pytest.mark.parametrize("scheme", ["row", "replicated"])
def test_rows_in_two_tiers_come_when_their_ids_have_come_by_nccl(joined: None, scheme: str) -> None:
    case = tiered(1, scheme, ahead=True, optimizer="Adagrad", options={"lr": 0.1})
    compare(case, [run(case, sharded(case), [0])], train_alone(case))


@pytest.mark.parametrize("scheme", ["row", "table"])
def test_ids_of_dynamic_tables_come_by_nccl(joined: None, scheme: str) -> None:
    case = dynamic(1, scheme, ahead=True, optimizer="Adagrad", options={"lr": 0.1})
    compare(case, [run(case, sharded(case), [0])], train_alone(case))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_messages_go_through_nccl_in_half_precision(joined: None, kind: str) -> None:
    case = small.case(1, "row", wire={"forward": kind, "gradient": kind}, sizes=[[[4]]])
    found, expected = run(case, sharded(case), [0]), train_alone(case)
    wanted = expected["steps"][0]["every"]
    off = (found["steps"][0]["every"] - wanted).abs().max()
    assert 0 < off <= 2.0**-5 * wanted.abs().max().clamp(min=1.0)
