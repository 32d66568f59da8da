"""What tables and their state take on a card, and what is said where it is too much; without a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hybridrec as hr
from hybridrec import host_memory
from hybridrec.embedding import collection
from hybridrec.embedding.gpu import memory
from hybridrec.embedding.share import Share
from hybridrec.optim.rule import RowRule, StateColumn

CARD = torch.device("cuda", 0)
TABLES = [hr.Table(f"t{i}", dim=16, rows=rows) for i, rows in enumerate((10, 4000, 300, 2000))]
WHOLES = [(table, Share()) for table in TABLES]
ROWS = 6310
ADAM = RowRule("adam", (StateColumn("exp_avg"), StateColumn("exp_avg_sq")))
PER_ROW = RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_table_takes_its_rows_and_a_place_for_each(dtype, size):
    table = hr.Table("item", dim=16, rows=100, dtype=dtype)
    assert memory.table_bytes(table) == 100 * (16 * size + 4)
    assert memory.state_bytes(table, ADAM) == 100 * 2 * 16 * 4
    assert memory.state_bytes(table, PER_ROW) == 100 * 4
    assert memory.state_bytes(table, RowRule("sgd")) == 0


def test_a_share_takes_its_rows_and_columns_alone():
    table = hr.Table("item", dim=16, rows=101)
    assert memory.table_bytes(table, Share(0, 2)) == 51 * (16 * 4 + 4)
    assert memory.table_bytes(table, Share(1, 2, column=12)) == 50 * (4 * 4 + 4)
    assert memory.state_bytes(table, ADAM, Share(1, 2, column=12)) == 50 * 2 * 4 * 4
    assert memory.state_bytes(table, PER_ROW, Share(1, 2, column=12)) == 50 * 4
    assert memory.table_bytes(table, Share(empty=True)) == memory.state_bytes(table, ADAM, Share(empty=True)) == 0


def test_tables_that_fit_to_the_byte_are_taken():
    memory.refuse_rows(WHOLES, CARD, ROWS * 68)
    with pytest.raises(ValueError, match="rows of 4 tables"):
        memory.refuse_rows(WHOLES, CARD, ROWS * 68 - 1)


def test_the_message_has_what_is_needed_what_is_free_the_largest_tables_and_what_helps():
    with pytest.raises(ValueError, match="cannot fit") as caught:
        memory.refuse_rows(WHOLES, CARD, 100_000)
    text = str(caught.value)
    assert "the rows of 4 tables cannot fit: 429,080 bytes are needed on cuda:0, and 100,000 are free" in text
    assert "the largest: t1 (272,000), t3 (136,000), t2 (20,400)." in text
    for remedy in ("where='host'", "dtype=torch.bfloat16", "fewer rows=", "device='cpu'"):
        assert remedy in text


def test_state_of_all_tables_counts_together_also_of_two_of_one_name():
    held = [(TABLES[1].name, memory.state_bytes(TABLES[1], ADAM))] * 2
    memory.refuse_state(held, CARD, 2 * 4000 * 128)
    with pytest.raises(ValueError, match=r"the optimizer state of 1 table cannot.*1,024,000 bytes.*RowWiseAdagrad"):
        memory.refuse_state(held, CARD, 2 * 4000 * 128 - 1)


def test_nothing_is_refused_where_the_room_is_not_known():
    assert memory.free_bytes(torch.device("cpu")) is None
    memory.refuse_rows(WHOLES, torch.device("cpu"), None)


def test_a_collection_that_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    emb = hr.EmbeddingCollection(TABLES, device="cuda")  # a Trainer might give its tables a cache
    with pytest.raises(ValueError, match=r"429,080 bytes are needed on cuda:0, and 1,000 are free"):
        hr.optim.SGD(emb, lr=0.1)
    assert not emb.allocated


def test_where_tables_are_divided_their_shares_are_counted_when_they_are_known(monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    monkeypatch.setattr(collection, "_one_of_many", lambda: True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 107_304)
    emb = hr.EmbeddingCollection(TABLES, device="cuda")
    assert not emb.allocated
    emb.expect_rows({table.name: Share(1, 4) for table in TABLES})
    with pytest.raises(ValueError, match=r"214,540 bytes are needed on cuda:0, and 107,304 are free"):
        emb.expect_rows({table.name: Share(1, 2) for table in TABLES})
    with pytest.raises(ValueError, match=r"429,080 bytes are needed"):
        emb["t0"]  # whole tables after all


def test_tables_on_the_host_need_no_room_on_a_card(monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    tables = [TABLES[0], *(replace(table, where="host") for table in TABLES[1:])]
    for name in ("make_store", "_connect"):
        monkeypatch.setattr(hr.EmbeddingCollection, name, lambda *_: None)
    hr.EmbeddingCollection([*tables, hr.Table("any", dim=4, capacity=10**9, where="host")], device="cuda")._allocate()
    with pytest.raises(ValueError, match=r"the rows of 2 tables cannot fit: 21,080 bytes .* t2 \(20,400\)"):
        hr.EmbeddingCollection([*tables[:2], TABLES[2]], device="cuda")._allocate()


TIERED = hr.Table("item", dim=16, rows=1000, cache=250)


def test_the_host_has_the_rows_that_are_not_hot_and_their_state():
    assert memory.cold_bytes(TIERED) == 750 * 64
    assert memory.cold_bytes(TIERED, ADAM) == 750 * 3 * 64
    assert memory.cold_bytes(TIERED, PER_ROW, Share(1, 2)) == 250 * 68
    assert memory.cold_bytes(TABLES[1], ADAM) == 0


def test_cold_rows_that_the_host_cannot_hold_are_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(collection, "device_of", lambda given: CARD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10**6)
    emb = hr.EmbeddingCollection([TIERED, TABLES[0]], device="cuda")
    monkeypatch.setattr(host_memory, "available", lambda: 53_333)  # of which nine tenths are one byte too few
    with pytest.raises(
        ValueError, match=r"the cold rows of 1 table cannot fit: 48,000 bytes .* 53,333 are avail.* item"
    ):
        hr.optim.SGD(emb, lr=0.1)
    assert not emb.allocated
    monkeypatch.setattr(host_memory, "available", lambda: 53_334)
    emb.expect_rows({"item": Share(), "t0": Share()})


def test_state_of_cold_rows_takes_the_place_of_another_ones(monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: 50_000)
    said = r"the optimizer state of cold rows of 1 table cannot fit: 96,000 bytes .*50,000 are available.*less state"
    with pytest.raises(ValueError, match=said):
        memory.refuse_cold_state([(TIERED, Share(), None, ADAM)])
    memory.refuse_cold_state([(TIERED, Share(), ADAM, ADAM), (TABLES[1], Share(), None, ADAM)])


def test_cold_rows_in_files_need_a_disk_and_no_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "available", lambda: 0)
    monkeypatch.setattr(memory, "free_on_disk", lambda folder: 95_999)
    one, other = (replace(TIERED, name=name, path=tmp_path / name) for name in ("one", "other"))
    assert (memory.cold_bytes(one), memory.file_bytes(one)) == (0, 48_000)
    memory.refuse_cold_rows([(one, Share())])
    said = r"cold rows of 2 tables cannot fit: 96,000 bytes are needed on the disk of .*one, and 95,999 are free.*path="
    with pytest.raises(ValueError, match=said):
        memory.refuse_cold_rows([(one, Share()), (other, Share())])
    with pytest.raises(ValueError, match="the optimizer state of cold rows of 1 table cannot fit: 96,000 bytes"):
        memory.refuse_cold_state([(one, Share(), None, ADAM)])
    memory.refuse_cold_state([(one, Share(), ADAM, ADAM)])


def test_nobody_asks_the_host_where_all_rows_are_on_the_card(monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: pytest.fail("it was asked"))
    memory.refuse_cold_rows(WHOLES)


def test_a_card_that_has_too_little_after_all_gives_the_same_message(monkeypatch):
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "free_bytes", lambda device: 77)
    with pytest.raises(
        ValueError, match=r"the rows of 1 table cannot fit: 500 bytes are needed on cuda:0, and 77 are free"
    ):
        memory.allocated(full, "the rows", "item", 500, CARD, memory.FEWER_ROWS)
