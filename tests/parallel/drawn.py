"""Cases that hypothesis draws: tables, hotness, sharing, combiners, plan, sizes, optimizer."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.parallel.jobs.habits import HABITS
from tests.parallel.training_case import Case, Spec, features_of

DIMS = (1, 3, 4, 8, 16, 17, 64)
COMBINERS = ("sum", "mean", "sqrtn", "max", "none")
OPTIMIZERS: dict[str, tuple[str, Spec]] = {
    "sgd": ("SGD", {"lr": 0.5}),
    "momentum": ("SGD", {"lr": 0.2, "momentum": 0.9}),
    "nesterov": ("SGD", {"lr": 0.2, "momentum": 0.9, "nesterov": True}),
    # A small gradient's rounding grows by lr / eps: at most by 5, so that 1e-5 holds for any draw.
    "adagrad": ("Adagrad", {"lr": 0.2, "eps": 0.04}),
    "rowwise_adagrad": ("RowWiseAdagrad", {"lr": 0.2, "eps": 0.04}),
    "adam": ("Adam", {"lr": 0.05, "eps": 0.01}),
    "ftrl": ("FTRL", {"lr": 0.3, "l1": 0.01, "l2": 0.02, "beta": 0.5}),
}
EVICTIONS = ("lru", "lfu", 1, 3, None)  # numbers are steps to live
RISKY = ("mean of nothing", "uses embeddings")  # a loss that is NaN without rows, and one whose squares may grow
USUAL = [habit for habit in HABITS if habit not in RISKY]
BESIDE: tuple[Spec, ...] = ({}, {"weight_decay": 0.01}, {"clip_row_norm": 0.05}, {"weight_bound": 0.6})


@st.composite
def cases(draw: st.DrawFn, world: int, most_tables: int = 8) -> Case:
    """A case for so many ranks, with a plan of any mix of schemes."""
    tables = [draw_table(draw, f"t{n}", trains=n == 0) for n in range(draw(st.integers(1, most_tables)))]
    placements = [draw_placement(draw, spec, world) for spec in tables]
    features = [name for spec in tables for name in features_of(spec)]
    optimizer, options = OPTIMIZERS[draw(st.sampled_from(list(OPTIMIZERS)))]
    beside = draw(st.sampled_from(BESIDE))
    learned = draw(st.booleans())
    habit = draw(st.sampled_from(("", "", "", *USUAL)))
    return Case(
        tables=tables,
        placements=placements,
        sizes=draw(sizes(world)),
        optimizer=optimizer,
        options={**options, **beside},
        hot={name: draw(st.sampled_from((None, None, 0, 1, 3))) for name in features},
        collections=draw_collections(draw, tables),
        weighted=learned or draw(st.booleans()),
        learned=learned,
        lookups=draw(st.sampled_from((1, 1, 2))),
        clip=draw(st.sampled_from((None, None, 0.05))),
        seed=draw(st.integers(0, 10_000)),
        weighs=draw(st.booleans()),
        ahead=not learned and habit != "weighs rows" and draw(st.booleans()),
        idless=draw(st.sampled_from(([], [], [0], [world - 1]))),
        habit=habit,
    )


def draw_table(draw: st.DrawFn, name: str, trains: bool) -> Spec:
    """Mostly fixed tables, often of fewer rows than ranks; some dynamic, some of hashes."""
    kind = draw(st.sampled_from(("fixed", "fixed", "fixed", "dynamic", "hashes")))
    features = [f"{name}{letter}" for letter in "abc"[: draw(st.sampled_from((1, 1, 2, 3)))]]
    valid = [each for each in COMBINERS if not (kind == "hashes" and each == "max")]
    combiner = {feature: draw(st.sampled_from(valid)) for feature in features}
    spec: Spec = {"name": name, "dim": draw(st.sampled_from(DIMS)), "features": features, "combiner": combiner}
    if not trains and draw(st.sampled_from((False, False, True))):  # half types: rows that train are rounded by chance
        spec |= {"trainable": False, "dtype": draw(st.sampled_from(("float32", "float16", "bfloat16")))}
    if kind == "dynamic":
        admission = draw(st.sampled_from((None, None, ["probability", 0.5], ["min_count", 2])))
        return spec | {"capacity": 200, "eviction": draw(st.sampled_from(EVICTIONS)), "admission": admission}
    if kind == "hashes":
        return spec | {"hashes": [draw(st.integers(1, 3)), draw(st.integers(2, 9))]}
    beyond = draw(st.sampled_from(("error", "error", "hash", "zero")))
    return spec | {"rows": draw(st.sampled_from((1, 2, 5, 12, 40))), "out_of_range": beyond}


def draw_placement(draw: st.DrawFn, spec: Spec, world: int) -> Spec:
    """Any scheme that the table can have."""
    schemes = ["table", "row"]
    if not spec.get("capacity"):
        schemes += ["replicated"] + ["column"] * (spec["dim"] > 1)
    scheme = draw(st.sampled_from(schemes))
    order = draw(st.permutations(range(world)))
    made: Spec = {"table": spec["name"], "scheme": scheme, "devices": list(range(world))}
    if scheme == "table":
        return made | {"devices": order[:1]}
    if scheme == "row":
        return made | {"devices": order[: draw(st.integers(1, world))]}
    if scheme == "column":
        count = draw(st.integers(1, min(world, spec["dim"])))
        cuts = sorted(draw(st.sets(st.integers(1, spec["dim"] - 1), min_size=count - 1, max_size=count - 1)))
        widths = [end - begin for begin, end in zip([0, *cuts], [*cuts, spec["dim"]], strict=True)]
        return made | {"devices": order[:count], "columns": widths}
    return made


def draw_collections(draw: st.DrawFn, tables: list[Spec]) -> list[list[str]] | None:
    """All tables in one collection, or in two."""
    names = [spec["name"] for spec in tables]
    at = draw(st.integers(0, len(names) - 1))
    return [names[:at], names[at:]] if at else None


@st.composite
def sizes(draw: st.DrawFn, world: int) -> Any:
    """Three steps of one to two batches per rank, some of them empty; somebody has rows in every step."""
    of_rank = st.sampled_from((0, 1, 2, 3, 5))
    micro = st.lists(of_rank, min_size=world, max_size=world).filter(any)
    return draw(st.lists(st.lists(micro, min_size=1, max_size=2), min_size=3, max_size=3))
