"""Workloads and clusters for the tests of planning: drawn ones, and those of distributed-embeddings."""

from __future__ import annotations

from hypothesis import strategies as st

from hybridrec.parallel import Cluster, FeatureLoad, TableLoad, Workload

SMALL = Cluster.parse("1x4xcpu")


def table(name: str = "item", rows: int = 1000, dim: int = 8, hotness: float = 1.0, **more) -> TableLoad:
    return TableLoad(name, rows, dim, (FeatureLoad(name, hotness, more.pop("combiner", "sum")),), **more)


def work(*tables: TableLoad, batch_size: int = 512) -> Workload:
    return Workload(tables, batch_size)


def of_sizes(*sizes: tuple[int, int]) -> Workload:
    """Tables of these (rows, dim)."""
    return work(*(table(f"t{i}", rows, dim) for i, (rows, dim) in enumerate(sizes)), batch_size=16)


tables = st.builds(
    lambda i, rows, dim, hot, combiner, state, dynamic, trainable: table(
        f"t{i}",
        round(10**rows),
        dim,
        hot,
        combiner=combiner,
        state_per_element=state,
        state_per_row=4 - state,
        dynamic=dynamic,
        trainable=trainable,
    ),
    st.integers(0, 99),
    st.floats(0, 8),
    st.integers(1, 130),
    st.sampled_from([0.0, 0.5, 1.0, 8.0, 50.0]),
    st.sampled_from(["sum", "mean", "none"]),
    st.sampled_from([0, 4]),
    st.booleans(),
    st.booleans(),
)
workloads = st.builds(
    lambda found, batch: Workload(tuple(found), batch),
    st.lists(tables, min_size=1, max_size=8, unique_by=lambda each: each.name),
    st.sampled_from([1, 100, 8192]),
)
clusters = st.builds(
    lambda shape, kind, memory: Cluster.parse(f"{shape}x{kind}", memory=memory),
    st.sampled_from(["1x1", "1x2", "1x3", "2x2", "2x8"]),
    st.sampled_from(["cpu", "H100", "A100-40"]),
    st.sampled_from([1e6, 1e8, 1e9, 80e9]),
)

# Tables (rows, dim) and devices of the golden plans of distributed-embeddings.
GOLDEN = {
    "seven": ([(11, 7), (5, 8), (3, 8), (5, 8), (12, 25), (3, 12), (7, 13)], 3),
    "sliced": ([(100, 8), (5, 8), (10, 8), (25, 4)], 4),
    "uneven columns": ([(16, 6)], 4),
    "even columns": ([(16, 8)], 4),
    "eight on one": ([(10, 2), (11, 2), (4, 2), (4, 2)] * 2, 1),
    "eight on two": ([(10, 2), (11, 2), (4, 2), (4, 2)] * 2, 2),
    "three groups": ([(10, 4), (1000, 16), (100_000, 8), (50, 16)], 2),
    "offloaded": ([(100, 32)] * 4 + [(1000, 64)] * 4, 1),
}
