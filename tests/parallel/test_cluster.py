"""Clusters from text."""

from __future__ import annotations

import pytest

from hybridrec.parallel import Cluster
from hybridrec.parallel.cluster import KINDS


@pytest.mark.parametrize("kind", [*KINDS, "h100", "CPU"])
def test_every_kind_is_known_in_any_case(kind):
    found = Cluster.parse(f"3x4x{kind}")
    assert found.world == 12
    assert Cluster.parse(found.name) == found


def test_figures_can_be_overridden():
    assert Cluster.parse("1x2xcpu", memory=5e9).memory == 5e9


@pytest.mark.parametrize(
    ("text", "figures", "said"),
    [
        ("8xH100", {}, "write NODESxDEVICESxKIND, such as 2x8xH100"),
        ("1x8xV100", {}, "no kind 'V100'; there are A100-40"),
        ("0x8xH100", {}, "nodes is 0"),
        ("8193x8xH100", {}, "are 65,544 devices; plans are made for 65,536 at most: give fewer"),
        ("1x8xH100", {"memroy": 1.0}, "no 'memroy' to override; it has memory"),
        ("1x8xH100", {"memory": 0.0}, "memory is 0.0"),
        ("1x8xH100", {"inside": float("inf")}, "inside is inf"),
        ("1x8xcpu", {"host_memory": 1e9}, "give both"),
    ],
)
def test_what_is_no_cluster_is_refused(text, figures, said):
    with pytest.raises(ValueError, match=said):
        Cluster.parse(text, **figures)


def test_one_device_has_no_latency():
    assert Cluster.parse("1x1xcpu").latency == 0
