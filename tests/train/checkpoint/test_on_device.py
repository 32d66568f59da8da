"""Checkpoints of tables on a device: saved while training goes on, resumed there or on the CPU, and the other way."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec import host_memory
from hybridrec.embedding import LFU, MinCount, Table, state
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu.capture import DeviceCapture
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Store
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.serve import table_file
from hybridrec.train import table_figures
from hybridrec.train.checkpoint import Checkpoints, Contents, load, verify
from hybridrec.train.checkpoint import write as writing
from hybridrec.train.checkpoint.homes import homes_of
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import SIZES, OnDevice
from tests.embedding.mixed.beside import beside
from tests.gpu import DEVICE, needs_gpu
from tests.train.checkpoint.runs import Run
from tests.train.checkpoint.shards import Held, part_of, random_rows, same, saved, shares_of, store_of

pytestmark = needs_gpu

SIZE = {"item": 40, "user": 12}
ROWS = {"adagrad": lambda m: hr.optim.Adagrad(m, lr=0.1), "rowwise": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.1)}


HALF = "half"  # the tables on the device, but for one on the host
Where = torch.device | str | None


def store_on_device(table: Table, seed: int, share: Share = WHOLE) -> DeviceStore:
    return (DeviceHashStore if table.dynamic else DeviceStore)(table, seed, DEVICE, share)


class Click(nn.Module):
    """Two tables and a layer, on the CPU or on the device."""

    def __init__(self, device: Where, seed: int, dynamic: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        tables = [Table(name, 3, rows=2 * size) for name, size in SIZE.items()]
        if dynamic:
            tables[-1] = Table("user", 3, capacity=10, admission=MinCount(2))
        emb = hr.EmbeddingCollection(tables, seed=seed)
        if device == HALF:
            self.emb = beside([replace(tables[0], where="host"), *tables[1:]], seed)
        else:
            self.emb = emb if device is None else OnDevice(emb, SIZES[0], store_on_device)
        self.top = nn.Linear(6, 1).to("cpu" if device is None else DEVICE)

    def forward(self, ids: Mapping[str, Tensor]) -> Tensor:
        block = IdBlock.from_ragged(dict(ids))
        if isinstance(self.emb, OnDevice):
            return self.top(self.emb(block)[0])[:, 0]
        return self.top(self.emb(block.to(self.emb.device)).flat)[:, 0]


def run(device: Where, rows: str = "adagrad", seed: int = 0) -> Run:
    return Run(Click(device, seed), ROWS[rows], SIZE)


def held(trained: Run) -> dict[str, Any]:
    """Rows, state and clock of every table."""
    snapshots = {name: home.snapshot() for name, home in homes_of(trained.model).items() if isinstance(home, Store)}
    return {
        part: value
        for name, each in snapshots.items()
        for part, value in {
            f"{name} rows": each.data.rows,
            f"{name} clock": torch.tensor(each.clock),
            **{f"{name} {column}": values for column, values in each.data.state.items()},
        }.items()
    }


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "places",
    [(DEVICE, DEVICE), (DEVICE, None), (None, DEVICE), (HALF, DEVICE), (DEVICE, HALF)],
    ids=["same", "to_cpu", "from_cpu", "from_host", "to_host"],
)
def test_a_run_is_resumed_wherever_its_tables_are(tmp_path, rows, places):
    first, second = run(places[0], rows), run(places[1], rows, seed=5)
    first.train(2)
    second.resume(first.save(tmp_path))
    there, here = held(first), held(second)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)
    for each in (first, second):
        each.train(1)
    for name, values in held(second).items():
        torch.testing.assert_close(values, held(first)[name], atol=1e-5, rtol=1e-4)


def test_a_dynamic_table_is_resumed_on_the_device_and_on_the_host_again(tmp_path):
    first, second, third = (Run(Click(home, 0, dynamic=True), ROWS["rowwise"], SIZE) for home in (None, DEVICE, None))
    first.train(2)
    second.resume(first.save(tmp_path / "first"))
    for each in (first, second):
        each.train(1)
    third.resume(second.save(tmp_path / "second"))
    wanted, *others = (_exported(each) for each in (first, second, third))
    assert wanted["ids"].tolist()
    for found in others:
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-4)


def _exported(trained: Run) -> dict[str, Tensor]:
    """All that is saved of the dynamic table."""
    home = next(home for home in homes_of(trained.model).values() if home.table.dynamic)
    assert isinstance(home, Store)
    data, sketch = home.export(), home.snapshot().sketch
    parts = {"ids": data.ids, "rows": data.rows, "touched": data.touched, "sketch": sketch, **data.state}
    return {name: part for name, part in parts.items() if part is not None}


RULE = RowRule("adagrad", (StateColumn("sum"), StateColumn("mean", per_row=True)))


def on_ranks(table: Table, division: tuple[str, int], device: torch.device | None) -> list[Held]:
    """A model for each rank, with its share of a table on the CPU or on the device."""
    made = []
    for share in shares_of(*division, table.dim):
        store = store_of(table, share) if device is None else store_on_device(table, 3, share)
        store.attach(RULE)
        made.append(Held({table.name: store}, TableGroup if device is None else DeviceGroup))
    return made


@pytest.mark.parametrize("table", [Table("item", 5, rows=23), Table("item", 6, rows=3, dtype=torch.bfloat16)])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((("row", 2), DEVICE), (("table", 1), None)),
        ((("table", 1), None), (("row", 2), DEVICE)),
        ((("row", 4), DEVICE), (("row", 3), DEVICE)),
        ((("column", 2), DEVICE), (("row", 2), DEVICE)),
        ((("grid", 4), DEVICE), (("column", 3), None)),
        ((("replicated", 2), None), (("grid", 4), DEVICE)),
        ((("table", 3), DEVICE), (("replicated", 2), DEVICE)),
    ],
)
def test_shares_of_any_ranks_are_loaded_by_any_others_wherever_they_are(table, before, after, tmp_path, monkeypatch):
    data = random_rows(table, torch.arange(table.fixed_rows), RULE, 0)
    sources = on_ranks(table, *before)
    for store in (each.stores["item"] for each in sources):
        store.load(*part_of(data, table, store.share)) if len(store) else None
        store.advance()
    path = saved([Contents(each) for each in sources], tmp_path, 5, monkeypatch)
    assert verify(path) == []
    for store, target in ((each.stores["item"], each) for each in on_ranks(table, *after)):
        assert load(path, Contents(target)).complete
        assert same(store.export(), part_of(data, table, store.share)), store.share
        assert (store.clock, store.rule) == (1, RULE)


USER = Table("user", 5, capacity=60, eviction=LFU(), admission=MinCount(2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((("row", 2), DEVICE), (("table", 2), None)),
        ((("row", 3), None), (("row", 2), DEVICE)),
        ((("table", 2), DEVICE), (("row", 3), DEVICE)),
    ],
)
def test_shares_of_dynamic_tables_are_loaded_by_any_others_wherever_they_are(before, after, tmp_path, monkeypatch):
    data = random_rows(USER, torch.arange(-20, 20) * 2**58, RULE, 0)
    sources = on_ranks(USER, *before)
    for store in (each.stores["user"] for each in sources):
        store.load(*part_of(data, USER, store.share))
        store.advance()
    path = saved([Contents(each) for each in sources], tmp_path, 5, monkeypatch)
    assert verify(path) == []
    for store, target in ((each.stores["user"], each) for each in on_ranks(USER, *after)):
        report = load(path, Contents(target))
        assert {**report.skipped, **dict.fromkeys(report.missing)} == {}
        assert same(store.export(), part_of(data, USER, store.share)), store.share
        assert (store.clock, store.rule) == (1, RULE)


@pytest.mark.parametrize(
    ("before", "after"), [((("row", 2), DEVICE), (("row", 3), DEVICE)), ((("row", 3), None), (("table", 1), DEVICE))]
)
def test_ids_that_were_counted_on_some_shares_are_let_in_on_others(before, after, tmp_path, monkeypatch):
    ids = torch.arange(-6, 6) * 2**60
    sources, targets = on_ranks(USER, *before), on_ranks(USER, *after)
    for store in (each.stores["user"] for each in sources):
        store.prepare(ids[store.share.owns(USER, ids)], train=True)
        assert not len(store)
    path = saved([Contents(each) for each in sources], tmp_path, 5, monkeypatch)
    for store, target in ((each.stores["user"], each) for each in targets):
        load(path, Contents(target))
        mine = ids[store.share.owns(USER, ids)]
        store.prepare(mine, train=True)
        assert store.ids().tolist() == mine.sort().values.tolist()


def test_rows_that_a_share_on_the_device_has_no_room_for_are_given_up_and_reported(tmp_path, monkeypatch):
    table = Table("user", 5, capacity=40)
    data = random_rows(table, torch.arange(40), RULE, 0)
    [source] = on_ranks(table, ("table", 1), None)
    source.stores["user"].load(*data)
    path = saved([Contents(source)], tmp_path, 5, monkeypatch)
    kept, said = [], []
    for target in on_ranks(table, ("row", 3), DEVICE):
        said.append(load(path, Contents(target)).notes.get("table user", ""))
        kept.append(len(target.stores["user"]))
    assert max(kept) == 14
    assert [count == 14 for count in kept] == ["had no room, 14 being the capacity here" in each for each in said]
    assert sum(kept) < 40, "the hash deals ids out unevenly"


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    trained, free, real = run(DEVICE), threading.Event(), writing.write_table
    monkeypatch.setattr(writing, "write_table", lambda *given: free.wait() and real(*given))
    trained.train(1)
    then = held(trained)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(trained.contents(), 1)
        assert checkpoints.busy
        trained.train(2)
        free.set()
    other = run(None, seed=5)
    other.resume(checkpoints.latest())
    assert all(torch.equal(then[name], values) for name, values in held(other).items())


def test_a_host_without_memory_for_the_rows_waits_and_copies_none_of_them(tmp_path, monkeypatch):
    trained, settled = run(DEVICE), []
    monkeypatch.setattr(host_memory, "available", lambda: 100)
    monkeypatch.setattr(DeviceCapture, "settle", lambda self: settled.append(self._next == self.most))
    trained.train(1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(trained.contents(), 1)
        assert not checkpoints.busy
        trained.train(1)
    assert all(settled)  # all of them had been read
    other = run(DEVICE, seed=5)
    other.resume(checkpoints.latest())


def test_tables_are_loaded_by_name(tmp_path):
    trained, other = run(DEVICE), run(DEVICE, seed=5)
    trained.train(1)
    path = trained.save(tmp_path)
    report = load(path, Contents(other.model), rename={"emb.item": "emb.user", "emb.user": "emb.gone"}, strict=False)
    assert "table emb.item" in report.missing
    assert report.skipped["table emb.user"].startswith("it was saved with 80 rows, and has 24")
    report = load(path, Contents(other.model))
    assert report.complete
    assert torch.equal(held(other)["emb.user rows"], held(trained)["emb.user rows"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_dict_goes_from_device_to_cpu_and_back(dtype):
    table = Table("item", 3, rows=20)
    cpu, gpu = DenseStore(table, 1), DeviceStore(table, 2, DEVICE)
    saved: dict[str, Tensor] = {}
    state.save(gpu, "emb.", saved)
    state.load(cpu, {"weight": saved["emb.item.weight"].to(dtype)})
    assert torch.equal(cpu.weight, gpu.weight.cpu())
    cpu.weight.mul_(2)
    state.load(gpu, {"weight": cpu.weight.to(dtype)})
    assert torch.equal(gpu.weight.cpu(), cpu.weight)


def test_rows_are_exported_for_serving(tmp_path):
    table = Table("item", 3, rows=20)
    cpu, gpu = DenseStore(table, 1), DeviceStore(table, 2, DEVICE)
    assert table_file.write(tmp_path / "item.arrow", gpu) == 20
    table_file.fill(cpu, tmp_path / "item.arrow")
    assert torch.equal(cpu.weight, gpu.weight.cpu())


def test_figures_of_a_run_do_not_ask_the_device_for_counters(monkeypatch):
    stores = {"item": DeviceStore(Table("item", 3, rows=20), 2, DEVICE)}
    monkeypatch.setattr(table_figures, "stores", lambda model: stores)
    monkeypatch.setattr(DeviceStore, "counters", None)
    figures = table_figures.TableFigures(nn.Linear(1, 1))
    assert figures.take() == {"item": {"rows": 20, "bytes": 240}}
    norm = figures.take(norms=True)["item"]["norm"]
    assert norm == pytest.approx(float(stores["item"].weight.norm(dim=1).mean()))
