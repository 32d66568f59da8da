"""The log of entries keeps order, size and memory."""

from __future__ import annotations

import pytest
import torch

from hybridrec.metrics import entries as module
from hybridrec.metrics.entries import Entries, EntryLog, entries_from, entries_of
from hybridrec.metrics.rows import as_rows


def keys(*values: int) -> Entries:
    return Entries(torch.tensor(values, dtype=torch.int32))


def test_parts_come_back_in_order_however_many_there_are(monkeypatch):
    monkeypatch.setattr(module, "_JOIN_AT", 4)
    log = EntryLog()
    for value in range(23):
        log.append(keys(value))
        assert log.size == value + 1
    assert len(log._short) < 4
    assert log.all().keys.tolist() == list(range(23))
    log.append(keys(23))
    assert log.all().keys.tolist() == list(range(24))


def test_keys_sort_by_score_then_label():
    scores = torch.tensor([0.0, 1e-40, 0.1, 0.1, 0.5, 1.0])
    labels = torch.tensor([1, 0, 0, 1, 0, 1])
    found = entries_of(as_rows(scores, labels, None, None)).keys
    assert bool((found.diff() > 0).all())
    zeros = entries_of(as_rows(torch.tensor([0.0, -0.0]), torch.tensor([0, 0]), None, None)).keys
    assert zeros.tolist() == [0, 0]


def test_a_state_of_columns_that_do_not_fit_is_refused():
    state = {**keys(1, 2, 3).state(), "groups": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(ValueError, match=r"groups must be torch.int64 \[3\] or empty, got torch.int64 \[2\]"):
        entries_from(state)
    with pytest.raises(ValueError, match=r"keys must be torch.int32 \[3\]"):
        entries_from({**keys().state(), "keys": torch.zeros(3)})


def test_parts_without_weights_count_one_beside_parts_with_weights():
    log = EntryLog(keys(1, 2))
    log.append(Entries(torch.tensor([3], dtype=torch.int32), torch.tensor([0.25]).double()))
    assert log.all().mass.tolist() == [1, 1, 0.25]
