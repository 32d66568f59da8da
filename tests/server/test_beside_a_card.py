"""Tables on servers beside tables on a GPU and on its host, in one collection."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.mixed.grouping import make_group
from hybridrec.embedding.native_store import NativeStore
from hybridrec.parallel import grouping
from tests.gpu import DEVICE, needs_gpu
from tests.server.direct import direct
from tests.server.served_model import assert_same

pytestmark = needs_gpu


def tables(served: bool) -> list[hr.Table]:
    where = "server" if served else None
    both = {"features": ["user", "friends"], "combiner": {"user": "sum", "friends": "none"}}
    return [
        hr.Table("item", dim=4, rows=9, features=["item", "seen"], combiner="mean"),
        hr.Table("user", dim=3, capacity=100, where=where, **both),
        hr.Table("day", dim=2, rows=7, where="host" if served else None),
        hr.Table("tag", dim=2, capacity=100, where=where),
    ]


def block(step: int) -> hr.IdBlock:
    draw = torch.Generator().manual_seed(step)
    names = {"item": 9, "seen": 9, "user": 40, "friends": 40, "day": 7, "tag": 30}
    return hr.IdBlock.from_ragged({name: torch.randint(most, (3, 2), generator=draw) for name, most in names.items()})


def train(emb: hr.EmbeddingCollection, ahead: bool) -> list[torch.Tensor]:
    rows = hr.optim.Adagrad(emb, lr=0.1)
    blocks, outputs = [block(step).to(DEVICE if ahead else "cpu") for step in range(2)], []
    if ahead:
        emb.prepare(blocks[0])
    for step, each in enumerate(blocks):
        if ahead and step + 1 < len(blocks):
            emb.prepare(blocks[step + 1])
        found = emb(each)
        outputs += [found.flat.detach().cpu(), found["friends"].values.detach().cpu()]
        (found.flat.square().sum() + found["friends"].values.sum()).backward()
        rows.step()
    return [*outputs, *(emb[name].export().rows.cpu() for name in ("user", "tag", "day", "item"))]


def test_all_three_train_as_tables_of_one_process_do(monkeypatch):
    from hybridrec.embedding.gpu.group import DeviceGroup
    from tests.embedding.gpu.on_device import QUICK
    from tests.parallel.gpu.collection import DeviceCollection

    def group(stores: dict, trainable: set[str], device: torch.device) -> object:
        native = all(isinstance(store, NativeStore) for store in stores.values())
        return make_group(stores, trainable, device) if native else DeviceGroup(stores, trainable, QUICK)

    monkeypatch.setattr(grouping, "make_group", group)
    model: Any = hr.shard(DeviceCollection(tables(served=True), seed=3), servers=direct(2))
    assert [type(part).__name__ for part in model.module.group.parts] == ["DeviceGroup", "JoinedGroup"]
    found = train(model.module, ahead=True)
    assert_same(found, train(hr.EmbeddingCollection(tables(served=False), seed=3), ahead=False), close=1e-5)
    assert_same(model.module.lookup("user", [1, 2]).cpu(), model.module["user"].lookup(torch.tensor([1, 2])))
