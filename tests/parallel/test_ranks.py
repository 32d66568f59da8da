"""How processes join: with NCCL where every rank has a card of its own."""

from __future__ import annotations

import pytest
import torch

from hybridrec.parallel import ranks


class Store(dict):
    """The store where ranks meet, as far as they ask it about cards."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()


@pytest.mark.parametrize(
    ("cards", "beside", "others", "own", "current"),
    [
        (0, 2, "own", False, None),
        (2, 2, "own", True, 1),
        (2, 2, "none", False, 1),  # another host has fewer
        (1, 2, "own", False, 0),
        (8, 2, "own", True, 1),
    ],
)
def test_ranks_have_nccl_where_each_has_a_card_of_its_own(monkeypatch, cards, beside, others, own, current) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(beside))
    store = Store({"cards/0": others.encode()})
    store.get = store.__getitem__  # pyright: ignore[reportAttributeAccessIssue]
    assert ranks._all_have_cards(store, 1, 2) is own
    assert chosen == ([] if current is None else [current])


def test_what_gloo_cannot_send_goes_through_the_host() -> None:
    values = torch.ones(2)
    assert ranks.sendable(values) is values
    assert ranks.Ranks(0, 1).stacked(values).tolist() == [[1.0, 1.0]]


def test_processes_that_joined_without_gloo_are_told_so(monkeypatch) -> None:
    monkeypatch.setattr(ranks.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.distributed, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(RuntimeError, match=r"joined with cuda:nccl, .* the backend 'cpu:gloo,cuda:nccl'"):
        ranks.init()
