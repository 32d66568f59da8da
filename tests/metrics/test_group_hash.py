"""The hash that picks groups: fair, nested, and the SplitMix64 of the books."""

from __future__ import annotations

import torch

from hybridrec.metrics.group_hash import _mixed, picked


def splitmix(x: int) -> int:
    """The same in Python's integers."""
    word = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & word
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & word
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & word
    return x ^ (x >> 31)


def test_it_is_splitmix64_for_the_whole_range_of_ids():
    ids = [0, 1, -1, 2**63 - 1, -(2**63), 123456789, -987654321]
    assert [int(x) & ((1 << 64) - 1) for x in _mixed(torch.tensor(ids))] == [splitmix(i) for i in ids]


def test_it_has_the_published_first_values():
    seeds = [0, 0x9E3779B97F4A7C15 - (1 << 64)]
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # SplitMix64 started at 0
    assert [int(x) & ((1 << 64) - 1) for x in _mixed(torch.tensor(seeds))] == published


def test_each_halving_keeps_half_of_what_the_one_before_kept():
    ids = torch.arange(1 << 16)
    before = picked(ids, 0)
    assert bool(before.all())
    for halvings in range(1, 8):
        now = picked(ids, halvings)
        assert bool((before | ~now).all())
        assert abs(int(now.sum()) / int(before.sum()) - 0.5) < 0.1
        before = now
