"""Steps with tables in two tiers as CUDA graphs: to the last bit those of tables which are all on the device.

On a card they are captured and replayed. Under the interpreter a replay does the captured work anew, over the same
memory, with lookups that take it for a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu import lookup, tiers
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.replay import Replay
from hybridrec.embedding.gpu.tier_class import TierClass
from hybridrec.train import fixed_batch, graphs
from hybridrec.train.evaluation import evaluate
from hybridrec.train.graphs import StepGraphs
from hybridrec.train.losses import make_loss
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner, train_step
from hybridrec.types import Batch, id_block
from tests.embedding.gpu.on_device import SIZES
from tests.embedding.gpu.test_tiered_training import TABLES, block, few, store
from tests.gpu import DEVICE, INTERPRETED, needs_gpu
from tests.ops.row_cache.caches import sound

pytestmark = needs_gpu

STEPS, ROWS = (4, 2) if INTERPRETED else (24, 4)  # of rows a power of two: gradients are exact
WIDTH = sum(TABLES[at].dim for at in (0, 0, 1, 2, 3))  # a, a_list, b, c and d


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no card, something that does what a graph would do."""
    if INTERPRETED:
        done = SimpleNamespace(synchronize=lambda: None, query=lambda: True)
        stream = SimpleNamespace(record_event=lambda: done)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
        monkeypatch.setattr(graphs, "captured", lambda work: done_anew(work))
        monkeypatch.setattr(graphs, "SEEN", 1)
        monkeypatch.setattr(id_block, "readable", lambda offsets: False)  # as it is on a card
        monkeypatch.setattr(fixed_batch, "room", lambda count: count + 2)
        monkeypatch.setattr(Replay, "run", lambda self, key, launches: launches())


def done_anew(work: Callable[[], None]) -> Callable[[], None]:
    """What does the work as a replay would, and once as the capture, whose results nobody sees."""

    def replay() -> None:
        with pytest.MonkeyPatch.context() as patch:
            for module in (tiers, lookup):
                patch.setattr(module, "capturing", lambda device: True)
            work()

    replay()
    return replay


class Scored(nn.Module):
    """Outputs whose gradients are multiples of a power of two, so that their sums are exact in any order."""

    def __init__(self, tiered: bool, path: Path | None = None) -> None:
        super().__init__()
        tables = TABLES if path is None else [replace(table, cache=0.5, path=path) for table in TABLES]
        self.embeddings = hr.EmbeddingCollection(tables, seed=3)
        self.embeddings.device = DEVICE
        made = {name: store(table, 3, tiered) for name, table in self.embeddings.tables.items()}
        self.embeddings.adopt(DeviceGroup(made, set(made), SIZES[0]))

    def forward(self, batch: Batch) -> Tensor:
        out = self.embeddings(batch)
        return (out.flat * batch.dense).sum(1) + out["c_seq"].values.sum() / 8


class Run:
    """A model and its learner, which sees each batch one step before it comes."""

    def __init__(
        self,
        tiered: bool,
        optimizer: Callable[[Any], hr.optim.RowOptimizer] | None = None,
        path: Path | None = None,
    ) -> None:
        self.model: Any = Scored(tiered, path)
        self.group: DeviceGroup = self.model.embeddings.group
        rows = hr.optim.RowWiseAdagrad(self.model, lr=0.125) if optimizer is None else optimizer(self.model)
        loss = make_loss(lambda outputs, batch: outputs)
        self.learner = Learner(self.model, loss, rows=rows, device=DEVICE, graphs=StepGraphs())
        self._coming: Placed | None = None

    def train(self, batches: list[Batch]) -> list[float]:
        """The losses."""
        found = []
        for number, batch in enumerate(batches):
            now = self._coming or self.learner.place(batch)
            self._coming = self.learner.place(batches[number + 1]) if number + 1 < len(batches) else None
            found.append(train_step(self.learner, [now]).loss)
        self.learner.settle()
        return found

    def evaluate(self, batch: Batch) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            found = self.learner.outputs(self.learner.place(batch).batch)
        self.model.train()
        return found


def batch_of(seed: int) -> Batch:
    torch.manual_seed(seed)
    given = block(ROWS)
    return Batch(given, torch.randint(-8, 9, (ROWS, WIDTH)) / 8, torch.zeros(ROWS))


def agree(one: Run, other: Run) -> None:
    for name, expected in one.group.stores.items():
        found, wanted = other.group.stores[name].snapshot().data, expected.snapshot().data
        assert torch.equal(found.rows, wanted.rows), name
        assert all(torch.equal(values, wanted.state[column]) for column, values in found.state.items()), name
    for tier in other.group.tiers:
        sound(tier.cache)


def test_replayed_steps_are_those_of_tables_on_the_device_bit_for_bit() -> None:
    hot, tiered = Run(tiered=False), Run(tiered=True)
    batches = [batch_of(seed) for seed in range(STEPS)]
    moved = [tier.cache.figures().moved for tier in tiered.group.tiers]
    assert tiered.train(batches[:-1]) == hot.train(batches[:-1])
    assert torch.equal(tiered.evaluate(batch_of(100)), hot.evaluate(batch_of(100)))  # without a graph, between replays
    assert tiered.train(batches[-1:]) == hot.train(batches[-1:])
    agree(hot, tiered)
    for run in (hot, tiered):
        assert run.learner.graphs is not None
        assert run.learner.graphs.refused is None
        assert run.learner.graphs.replays == STEPS - graphs.SEEN
    assert all(tier.cache.figures().moved > before for tier, before in zip(tiered.group.tiers, moved, strict=True))
    assert all(tier.cache.figures().refused == 0 for tier in tiered.group.tiers)
    assert all(len(tier._flights) == 0 for tier in tiered.group.tiers)


def test_replayed_steps_find_rows_that_were_in_files(tmp_path: Path) -> None:
    hot, tiered = Run(tiered=False), Run(tiered=True, path=tmp_path)
    batches = [batch_of(seed) for seed in range(graphs.SEEN + 2)]
    assert tiered.train(batches) == hot.train(batches)
    agree(hot, tiered)
    assert tiered.learner.graphs is not None
    assert tiered.learner.graphs.replays == 2
    assert all(tier.brought and tier.figures().moved for tier in tiered.group.tiers)


def test_the_next_block_is_admitted_with_a_replay_and_no_third_one_is_out() -> None:
    tiered = Run(tiered=True)
    tiered.train([batch_of(seed) for seed in range(graphs.SEEN + 1)])  # the last is a replay
    first, second, third = (tiered.learner.place(batch_of(seed)) for seed in (10, 11, 12))
    tier, rows, out = tiered.group.tiers[0], cast(Any, tiered.learner.rows), []
    before, step = tier.cache.figures().admissions, rows.step
    rows.step = lambda: (out.append(in_flight(tier)), step())[1]
    for number, placed in enumerate((first, second, third), 1):
        train_step(tiered.learner, [placed])
        assert tier.figures().admissions == before + min(number + 1, 3)
        assert len(tier._flights) == (number < 3)
    assert out == [2, 2, 1]  # rows stay until their update
    assert tiered.learner.graphs is not None
    assert tiered.learner.graphs.replays == 4


def in_flight(tier: TierClass) -> int:
    return sum(flight() is not None for flight, _ in tier._flights)


def scored(ids: id_block.IdBlock, factor: float = 1.0) -> Batch:
    return Batch(ids, torch.full((ids.batch_size, WIDTH), factor), torch.zeros(ids.batch_size))


def test_a_replay_that_needs_more_rows_than_there_is_room_for_is_told_and_none_is_lost() -> None:
    hot, tiered = Run(tiered=False), Run(tiered=True)
    one, many = few(a_list=[[3]]), few(a_list=[list(range(35))])  # and a row of d
    for run in (hot, tiered):
        run.train([scored(one) for _ in range(graphs.SEEN + 1)])
    coming = [scored(many), *(scored(one, 0.0) for _ in range(3))]
    with pytest.raises(ValueError, match=r"tables 'a', 'd' together have 34 rows on .* needed 2 more"):
        tiered.train(coming)  # nobody waits for the device to know: on a card it is told in one of the next steps
    for name in "ad":
        assert torch.equal(tiered.group.stores[name].snapshot().data.rows, hot.group.stores[name].snapshot().data.rows)


@pytest.mark.parametrize("trains", [True, False], ids=["a step", "an evaluation"])
def test_the_last_batch_of_a_run_is_told_if_it_needs_more_rows_than_there_is_room_for(trains: bool) -> None:
    tiered = Run(tiered=True)
    tiered.learner.graphs = None
    many = scored(few(a_list=[list(range(35))]))
    with pytest.raises(ValueError, match=r"tables 'a', 'd' together have 34 rows on .* needed 2 more"):
        tiered.train([many]) if trains else evaluate(tiered.learner, [many], None)
    tiered.learner.settle()  # it is told once


def test_a_replay_names_ids_outside_a_table() -> None:
    tiered = Run(tiered=True)
    tiered.train([scored(few(d=[3, 4])) for _ in range(graphs.SEEN + 1)])
    with pytest.raises(ValueError, match="id 25 of feature 'd' is outside table 'd', 0 … 19"):
        tiered.train([scored(few(d=[3, 25]))])


def test_ids_that_a_model_makes_itself_are_no_part_of_a_graph() -> None:
    tiered = Run(tiered=True)
    own = tiered.model.embeddings.forward
    tiered.model.embeddings.forward = lambda batch: own(batch.ids.map_tensors(torch.clone))
    tiered.train([scored(few(d=[3, 4])) for _ in range(graphs.SEEN + 2)])
    assert tiered.learner.graphs is not None
    assert "only where its ids are those of the batch as it comes" in (tiered.learner.graphs.refused or "")
