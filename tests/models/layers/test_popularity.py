from __future__ import annotations

import pytest
import torch

from hybridrec.models.layers import Popularity


def test_shares_are_those_of_all_rows_so_far():
    popularity = Popularity(buckets=1024)
    popularity(torch.tensor([1, 1, 2, 3]))
    assert popularity(torch.tensor([1, 4])).tolist() == pytest.approx([3 / 6, 1 / 6])


def test_evaluation_counts_nothing_and_an_unknown_id_has_the_share_of_a_row():
    popularity = Popularity(buckets=1024)
    popularity(torch.tensor([1, 1, 2, 3]))
    popularity.eval()
    for _ in range(2):
        assert popularity(torch.tensor([1, 99])).tolist() == pytest.approx([2 / 4, 1 / 4])


def test_shares_are_never_too_small_and_seldom_too_large():
    popularity = Popularity(buckets=4096)
    ids = torch.randint(-(2**63), 2**63 - 1, (500,)).repeat(4)
    shares = popularity(ids)
    assert (shares >= 4 / 2000).all()
    assert (shares == torch.tensor(4 / 2000)).float().mean() > 0.9


def test_counts_are_saved():
    popularity, again = Popularity(buckets=64), Popularity(buckets=64)
    popularity(torch.tensor([5, 5, 6]))
    again.load_state_dict(popularity.state_dict())
    assert torch.equal(popularity.eval()(torch.tensor([5, 6])), again.eval()(torch.tensor([5, 6])))


def test_buckets_are_a_power_of_two():
    with pytest.raises(ValueError, match="1000; it must be a power of two"):
        Popularity(buckets=1000)
