"""Tables that do not fit a card beside steps get a cache: without a card, whose free bytes are given."""

from __future__ import annotations

import inspect
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import hybridrec as hr
from hybridrec import host_memory
from hybridrec.embedding import collection
from hybridrec.embedding.gpu import caches, memory
from hybridrec.models import build
from hybridrec.models.summary import summary
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.train import Trainer
from hybridrec.train import launch as launched
from hybridrec.train.cache_choice import CacheChoice, first_of, give_caches
from hybridrec.train.row_rules import MOST, row_rules
from hybridrec.train.run_config import RunConfig
from hybridrec.train.step_memory import step_memory
from hybridrec.types import Batch, IdBlock
from tests.models.clicks import CONFIGS, dataset

CARD = torch.device("cuda", 0)
ROOM = 10**6  # bytes for tables
FREE = round(ROOM / (1 - caches.MARGIN))
ROWWISE = RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),))


@pytest.fixture(autouse=True)
def card(monkeypatch) -> None:
    monkeypatch.setattr(collection, "device_of", lambda given: CARD if given == "cuda" else torch.device(given))
    monkeypatch.setattr(memory, "free_bytes", lambda device: FREE)
    monkeypatch.setattr(host_memory, "available", lambda: 10**9)


class Towers(nn.Module):
    """Two collections, of which the second has a table that is called as one of the first."""

    def __init__(self, tables: list[hr.Table], others: list[hr.Table] | None = None) -> None:
        super().__init__()
        self.one = hr.EmbeddingCollection(tables, device="cuda")
        self.other = self.one if others is None else hr.EmbeddingCollection(others, device="cuda")
        self.top = nn.Linear(4, 1)


ITEM, DAY = hr.Table("item", dim=16, rows=20_000), hr.Table("day", dim=16, rows=7)  # 68 bytes a row, and 4 or 128


def hot_rows(model: Towers) -> dict[str, int | float | None]:
    found = {name: table.cache for name, table in model.one.tables.items()}
    return found | {
        f"other.{name}": table.cache for name, table in model.other.tables.items() if model.other != model.one
    }


def test_nothing_is_chosen_where_tables_fit_with_the_state_that_there_will_be(caplog):
    model = Towers([hr.Table("item", dim=16, rows=13_000), DAY])  # with Adam's they would not
    give_caches(model, None)
    assert hot_rows(model) == {"item": None, "day": None}
    assert not caplog.records
    give_caches(model, lambda it: hr.optim.Adam(it, lr=0.1))
    assert model.one.tables["item"].cache is not None


@pytest.mark.parametrize("kind", ["SGD", "RowWiseAdagrad", "Adagrad", "Adam", "FTRL"])
def test_what_is_chosen_fits_with_the_state_of_the_optimizer(kind):
    model = Towers([ITEM, DAY], [hr.Table("item", dim=4, rows=90_000), hr.Table("hour", dim=4, rows=24)])
    choice = lambda it: getattr(hr.optim, kind)(it, lr=0.1)  # noqa: E731
    rules = row_rules(model, choice)
    give_caches(model, choice)
    parts = {"one": model.one, "other": model.other}
    taken = [
        memory.table_bytes(table) + memory.state_bytes(table, rules[path, name])
        for path, part in parts.items()
        for name, table in part.tables.items()
    ]
    assert 0.99 * ROOM < sum(taken) <= ROOM
    hot = hot_rows(model)
    assert (hot["day"], hot["other.hour"]) == (None, None)
    assert not model.one.allocated


def test_it_is_said_in_one_line_which_tables_how_many_rows_why_and_how_to_override(caplog):
    with caplog.at_level(logging.WARNING, "hybridrec.train"):
        give_caches(Towers([ITEM, DAY]), None)
    (record,) = caplog.records
    said = record.getMessage()
    assert "\n" not in said
    for part in (
        "need 1,440,504 bytes on cuda:0, where 1,111,111 are free; 10% of that is left to steps, whose batches are not",
        "hot rows of 1 table are there, the others on the host (item 11,493 of 20,000)",
        "cache= of a table sets how many are hot",
        "where='device' keeps it whole",
        "model.tables='{\"NAME\"={cache=0.2}}'",
    ):
        assert part in said


def test_what_the_user_says_of_a_table_wins():
    tables = [
        hr.Table("own", dim=16, rows=30_000, cache=100),
        hr.Table("here", dim=16, rows=5_000, where="device"),
        hr.Table("host", dim=16, rows=10**6, where="host"),
        hr.Table("hashed", dim=16, hashes=hr.embedding.MultiHash(2, 2_500)),
        ITEM,
    ]
    model = Towers(tables)
    give_caches(model, None)
    hot = hot_rows(model)
    assert {name: hot.pop(name) for name in ("own", "here", "host", "hashed")} == {
        "own": 100, "here": None, "host": None, "hashed": None,
    }  # fmt: skip
    assert 0 < hot["item"] < 20_000


USER = hr.Table("user", dim=16, capacity=1_000)
USER_BYTES = memory.dynamic_bytes(USER, 1_000, MOST)


@pytest.mark.parametrize(("capacity", "kept"), [(1_000, USER_BYTES), (10**12, (ROOM - 1) // 2)])
def test_where_there_are_caches_dynamic_tables_have_room_to_grow_half_of_it_at_most(capacity, kept, caplog):
    model = Towers([ITEM, DAY, hr.Table("user", dim=16, capacity=capacity)])
    with caplog.at_level(logging.WARNING, "hybridrec.train"):
        give_caches(model, lambda it: hr.optim.SGD(it, lr=0.1))
    held = sum(memory.table_bytes(model.one.tables[name]) for name in ("item", "day"))
    assert 0.99 * (ROOM - kept) < held <= ROOM - kept
    assert f"; {kept:,} to rows of dynamic tables. So only hot rows" in caplog.text


def test_tables_that_fit_have_no_caches_however_much_dynamic_ones_may_hold():
    model = Towers([hr.Table("item", dim=16, rows=13_000), hr.Table("user", dim=16, capacity=10**9)])
    give_caches(model, lambda it: hr.optim.SGD(it, lr=0.1))
    assert hot_rows(model) == {"item": None, "user": None}


def test_where_no_caches_are_small_enough_dynamic_tables_have_what_is_left():
    whole = hr.Table("whole", dim=16, rows=9_000, where="device")
    model = Towers([ITEM, whole, hr.Table("user", dim=16, capacity=10**9)])
    give_caches(model, lambda it: hr.optim.SGD(it, lr=0.1))
    held = sum(memory.table_bytes(model.one.tables[name]) for name in ("item", "whole"))
    assert 0.99 * ROOM < held <= ROOM


def test_where_no_choice_fits_it_is_left_to_what_gives_rows_their_memory():
    model = Towers([hr.Table("item", dim=16, rows=10**6, where="device")])
    give_caches(model, None)
    with pytest.raises(ValueError, match=r"the rows of 1 table cannot fit: 68,000,000 bytes are needed on cuda:0"):
        _ = model.one.group


def test_a_host_that_cannot_hold_the_cold_rows_is_told_before_anything_is_chosen(monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: 500_000)
    model = Towers([ITEM, hr.Table("own", dim=16, rows=1000, cache=600)])
    with pytest.raises(ValueError, match="cannot fit") as caught:
        give_caches(model, None)
    said = str(caught.value)
    assert "the cold rows with their state of 2 tables cannot fit: 649,468 bytes are needed" in said
    assert "in memory of the host, and 500,000 are available, of which a tenth stays free" in said
    assert "item (622,268), own (27,200)" in said  # 9,151 and 400 rows of 68 bytes
    assert "a smaller type for cold rows such as cold=torch.int8, fewer rows=, an optimizer with less state" in said
    assert hot_rows(model) == {"item": None, "own": 600}


def test_no_rule_keeps_more_than_the_one_that_stands_for_all():
    kinds = [getattr(hr.optim, name) for name in hr.optim.__all__]
    kinds = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, hr.optim.RowOptimizer)]
    kinds.remove(hr.optim.RowOptimizer)
    assert len(kinds) >= 5
    for kind in kinds:
        made = kind(hr.EmbeddingCollection([hr.Table("item", dim=4, rows=1)]), lr=0.1)
        for table in (hr.Table("item", dim=1, rows=10), hr.Table("item", dim=64, rows=10)):
            rule = made.rule(made.param_groups[0])
            assert memory.state_bytes(table, rule) <= memory.state_bytes(table, MOST)


def test_rules_are_known_by_table_without_memory_for_rows():
    model = Towers([ITEM, hr.Table("fixed", dim=4, rows=9, trainable=False)], [hr.Table("item", dim=2, rows=9)])
    made = []

    def of_one(it: Towers) -> hr.optim.RowOptimizer:
        made.append(hr.optim.Adam(it.one, lr=0.1))  # a function may take a part of the model
        return made[-1]

    assert {at: rule.names for at, rule in row_rules(model, of_one).items()} == {
        ("one", "item"): ("exp_avg", "exp_avg_sq"),
        ("other", "item"): (),
    }
    assert not model.one.allocated
    assert not made[0].tables, "its rows are those of nobody"


@pytest.mark.parametrize("name", CONFIGS)
def test_rules_of_every_model_are_known_and_its_tables_are_still_free(name):
    labels = ("click", "like") if name == "mmoe" else ("click",)
    model = build(name, dataset(rows=20, labels=labels).schema, **CONFIGS[name])
    found = row_rules(model, lambda it: hr.optim.Adagrad(it, lr=0.1))
    assert {rule.names for rule in found.values()} == {("sum",)}
    assert len(found) == sum(len(part.tables) for part in model.modules() if isinstance(part, hr.EmbeddingCollection))
    hr.optim.Adam(model, lr=0.1)


# -- when a Trainer chooses --------------------------------------------------------------------------------------------


def batch_of(rows: int) -> Batch:
    return Batch(IdBlock.from_lists({"item": [0] * rows, "day": [0] * rows}), torch.zeros(rows, 3))


@pytest.fixture
def no_memory(monkeypatch) -> None:
    """Who gives rows memory on the card is told how many would be hot."""
    allocate = hr.EmbeddingCollection._allocate

    def stop(self: hr.EmbeddingCollection) -> None:
        if self.device == CARD:
            raise RuntimeError(f"cache of item: {self.tables['item'].cache}")
        allocate(self)

    monkeypatch.setattr(hr.EmbeddingCollection, "_allocate", stop)


@pytest.mark.usefixtures("no_memory")
def test_a_trainer_whose_tables_may_fill_the_card_waits_for_batches_or_for_who_needs_rows():
    trainer = Trainer(Towers([ITEM, DAY]))
    with pytest.raises(RuntimeError, match="cache of item: 11493"):
        _ = trainer.learner
    with pytest.raises(RuntimeError, match="cache of item: None"):
        Trainer(Towers([hr.Table("item", dim=16, rows=2_000)]))


@pytest.mark.usefixtures("no_memory")
def test_a_fit_leaves_the_card_what_steps_on_its_batches_need(caplog):
    model, batches = Towers([ITEM, DAY]), [batch_of(600), batch_of(600)]
    needed = step_memory(model, batches[0], CARD)
    assert needed.total > 2 * caches.MARGIN * FREE
    trainer = Trainer(model)
    assert not caplog.records, "nothing is told before it is settled"
    with pytest.raises(RuntimeError, match=r"cache of item: \d+"):
        trainer.fit(batches)
    table = model.one.tables["item"]
    taken = (
        memory.table_bytes(table) + memory.table_bytes(DAY) + sum(memory.state_bytes(t, ROWWISE) for t in (table, DAY))
    )
    assert 0.99 * (FREE - needed.total) < taken <= FREE - needed.total
    (record,) = caplog.records
    assert f"where 1,111,111 are free; left to steps are {needed}. So only hot rows of 1 table" in record.getMessage()


@pytest.mark.usefixtures("no_memory")
def test_a_run_that_was_launched_knows_its_batches_before_anybody_asks_for_rows(monkeypatch, tmp_path):
    pq.write_table(pa.table({"item": range(1_200), "day": [0, 1] * 600, "click": [0, 1] * 600}), tmp_path / "a.pq")
    monkeypatch.setattr(launched, "build", lambda *_, **__: Towers([ITEM, DAY]))
    made = launched.launch(
        RunConfig.of({"data": {"path": str(tmp_path / "a.pq"), "label": "click", "batch_size": 600}})
    )
    with pytest.raises(RuntimeError, match=r"cache of item: \d+") as caught:
        summary(made.trainer.model)  # as the command line prints it
    assert 0 < int(str(caught.value).rpartition(" ")[2]) < 11_493


@pytest.mark.usefixtures("no_memory")
def test_what_is_known_of_a_trainer_without_rows_does_not_give_them_memory():
    trainer, ds = Trainer(Towers([ITEM, DAY])), dataset(rows=20)
    assert trainer.is_main
    assert trainer.main_metric(ds) == "auc"
    assert "learner" not in vars(trainer)


@pytest.mark.usefixtures("no_memory")
def test_data_is_not_read_for_rows_that_have_memory(monkeypatch):
    trainer = Trainer(Towers([ITEM, DAY]))
    monkeypatch.setattr(hr.EmbeddingCollection, "allocated", True)
    monkeypatch.setattr("hybridrec.train.trainer.first_of", lambda data: pytest.fail("it was read"))
    trainer.expect([batch_of(600)])


def test_larger_batches_leave_fewer_hot_rows_and_accumulated_ones_too():
    hot = []
    for rows, accumulate in ((1, 1), (300, 1), (300, 2), (600, 1)):
        choice = CacheChoice(model := Towers([ITEM, DAY]), None)
        choice.make(batch_of(rows), accumulate)
        hot.append(model.one.tables["item"].cache)
    assert 11_493 == hot[0] > hot[1] > hot[2] > hot[3]


def test_steps_that_would_take_the_whole_card_leave_tables_what_they_had_without_them(caplog):
    """It is an estimate, and tables that do not fit the card would have no cache at all."""
    choice = CacheChoice(model := Towers([ITEM, DAY]), None)
    choice.make()
    choice.make(batch := batch_of(5_000))
    assert (needed := step_memory(model, batch, CARD)).total > FREE
    assert model.one.tables["item"].cache == 11_493
    choice.tell()
    said = caplog.records[-1].getMessage()
    assert f"left to steps, which may be too little, smaller batches need less: {needed}. So only" in said


def test_tables_that_fit_but_for_the_steps_get_a_cache():
    model = Towers([hr.Table("item", dim=16, rows=13_000), DAY])
    choice = CacheChoice(model, None)
    choice.make()
    assert hot_rows(model) == {"item": None, "day": None}
    assert choice.waits
    choice.make(batch_of(600))
    assert 0 < (model.one.tables["item"].cache or 0) < 13_000


def test_what_was_chosen_before_batches_were_known_is_forgotten():
    model = Towers([ITEM, DAY])
    choice = CacheChoice(model, None)
    choice.make()
    choice.make(batch_of(600))
    fewer = hot_rows(model)
    choice.make()
    assert hot_rows(model)["item"] == 11_493 > fewer["item"]


def test_rows_that_have_memory_keep_the_caches_they_got_it_with(monkeypatch):
    model = Towers([ITEM, DAY])
    choice = CacheChoice(model, None)
    choice.make()
    monkeypatch.setattr(hr.EmbeddingCollection, "allocated", True)
    choice.make(batch_of(600))
    assert hot_rows(model)["item"] == 11_493
    assert not choice.waits


def test_a_first_batch_is_read_without_moving_the_data():
    ds = dataset(rows=100).batch(30)
    before = ds.state_dict()
    first = first_of(ds)
    assert first is not None
    assert len(first) == 30
    assert ds.state_dict() == before
    batches = [batch_of(0), batch_of(7)]
    assert first_of(batches) is batches[1]


def test_data_that_gives_its_batches_once_is_not_touched():
    batches = iter([batch_of(7)])
    assert first_of(batches) is None
    assert len(next(batches)) == 7
    table = pa.table({"user": [1, 2], "click": [0, 1]})
    stream = hr.data.stream(iter(table.to_batches()), label="click", batch_size=2)
    assert first_of(stream) is None
    assert [len(batch) for batch in stream] == [2]
