"""A run that was saved, loaded into a new model and trained on is, bit by bit, the run that was left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

import hybridrec as hr
from hybridrec.embedding import LFU, LRU, TTL, MinCount, MultiHash, Probability, Table
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from tests.train.checkpoint.runs import Click, Rows, Run, differences, everything

FEATURES = {"item": 20, "history": 20, "user": 40}
HALF = (torch.float32, torch.float16, torch.bfloat16)
ROWS: dict[str, Rows] = {
    "sgd": lambda m: SGD(m, lr=0.1),
    "momentum": lambda m: SGD(m, lr=0.1, momentum=0.9),
    "nesterov": lambda m: SGD(m, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda m: Adagrad(m, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1),
    "rowwise_adagrad": lambda m: RowWiseAdagrad(m, lr=0.1, overrides={"user": {"lr": 0.3}}),
    "adam": lambda m: Adam(m, lr=0.1, weight_decay=0.01),
    "ftrl": lambda m: FTRL(m, lr=0.1, l1=0.001),
}
DENSE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}
POLICIES: dict[str, dict[str, Any]] = {
    "lru": {"eviction": LRU()},
    "lfu": {"eviction": LFU()},
    "ttl": {"eviction": TTL(2), "capacity": 1000},
    "ttl of a full table": {"eviction": TTL(2)},
    "never": {"eviction": None},
    "min count": {"admission": MinCount(3)},
    "min count above a byte": {"admission": MinCount(300)},
    "probability": {"admission": Probability(0.5)},
}


def tables(dtype: torch.dtype = torch.float32, **dynamic: Any) -> list[Table]:
    shared = Table("item", 3, rows=20, features=["item", "history"], combiner="mean", dtype=dtype)
    return [shared, Table("user", 4, **{"capacity": 24, "dtype": dtype, **dynamic})]


def check(make: Callable[[], Run], tmp_path: Any, before: int = 4, after: int = 4) -> Run:
    """Train on, and again from a checkpoint in a new model; both must be the same, and the checkpoint must matter."""
    torch.manual_seed(0)
    alone = make()
    alone.train(before)
    path = alone.save(tmp_path)
    saved = copy.deepcopy(everything(alone))
    alone.train(after)
    torch.manual_seed(1)
    resumed = make()
    resumed.train(1)  # what a model held before it was loaded does not matter
    resumed.resume(path)
    assert [name for name, value in everything(resumed).items() if not _equal(value, saved[name])] == []
    resumed.train(after)
    assert differences(alone, resumed) == []
    return resumed


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and a.dtype == b.dtype else type(a) is type(b)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rows", ROWS)
def test_every_row_optimizer_and_type_of_rows_goes_on(rows, dtype, tmp_path):
    check(lambda: Run(Click(*tables(dtype)), ROWS[rows], FEATURES), tmp_path)


@pytest.mark.parametrize("dense", DENSE)
def test_every_dense_optimizer_goes_on(dense, tmp_path):
    check(lambda: Run(Click(*tables()), ROWS["adagrad"], FEATURES, DENSE[dense]), tmp_path)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 3, 3, 6], 0.5),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9, cycle_momentum=False),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "in turn": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1, 3), lr_scheduler.ExponentialLR(o, 0.8)], milestones=[3]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # SequentialLR uses it
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_goes_on(schedule, tmp_path):
    def make() -> Run:
        run = Run(Click(*tables()), ROWS["adam"], FEATURES)
        run.schedules = {name: SCHEDULES[schedule](each) for name, each in run.optimizers.items()}
        return run

    check(make, tmp_path)


@st.composite
def table_lists(draw: st.DrawFn) -> list[Table]:
    """One to three tables of any kind."""
    made = []
    for name in ("item", "history", "user")[: draw(st.integers(1, 3))]:
        options: dict[str, Any] = {"dtype": draw(st.sampled_from(HALF))}
        if draw(st.booleans()):
            options["rows"], options["out_of_range"] = draw(st.integers(1, 20)), draw(st.sampled_from(["hash", "zero"]))
        else:
            options["capacity"] = draw(st.integers(8, 40))
            options["eviction"] = draw(st.sampled_from([LRU(), LFU(), TTL(1), TTL(5), None]))
            options["admission"] = draw(st.sampled_from([None, MinCount(1), MinCount(2), Probability(0.7)]))
        made.append(Table(name, draw(st.integers(1, 9)), **options))
    return made


@settings(max_examples=15)
@given(made=table_lists(), rows=st.sampled_from(sorted(set(ROWS) - {"rowwise_adagrad"})), before=st.integers(0, 6))
def test_any_tables_go_on(made, rows, before):
    with TemporaryDirectory() as folder:
        check(lambda: Run(Click(*made), ROWS[rows], FEATURES), Path(folder), before, 4)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_of_dynamic_tables_goes_on(policy, tmp_path):
    run = check(lambda: Run(Click(*tables(**POLICIES[policy])), ROWS["adagrad"], FEATURES), tmp_path, 6, 6)
    counters = run.model.emb["user"].counters()
    assert policy == "min count above a byte" or counters["inserted"] > 0


def test_expired_rows_that_still_have_a_place_go_on(tmp_path):
    """A full table gives up a 64th of its rows at once, so that it matters how many have expired."""

    def make() -> Run:
        run = Run(Click(Table("user", 2, capacity=256, eviction=TTL(255))), ROWS["sgd"], {})
        run.batch = lambda: {"user": torch.tensor([run.step, run.step])}
        return run

    check(make, tmp_path, before=256, after=1)


def test_multi_hash_tables_go_on(tmp_path):
    def make() -> Run:
        table = Table("user", 4, hashes=MultiHash(2, 11), combiner="mean")
        return Run(Click(table), ROWS["adam"], {"user": 1000})

    check(make, tmp_path)


class Towers(nn.Module):
    """Two collections with tables of the same name, one more that is shared, and numbers for ids."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = hr.IntegerLookup(max_tokens=19)
        self.left = hr.EmbeddingCollection([Table("item", 3, rows=20), Table("user", 2, capacity=30)])
        self.right = hr.EmbeddingCollection([Table("item", 5, rows=20)])
        self.again = self.left
        self.frozen = hr.EmbeddingCollection([Table("history", 2, rows=20, trainable=False)])
        self.top = nn.Linear(12, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, ids: Mapping[str, Tensor]) -> Tensor:
        self.seen += len(ids["item"])
        small = {**ids, "item": self.numbers(ids["item"] * 7)}
        parts = [part(small).flat for part in (self.left, self.right, self.frozen)]
        return self.top(torch.cat(parts, 1))[:, 0]


def test_models_of_several_collections_and_integer_lookups_go_on(tmp_path):
    run = check(lambda: Run(Towers(), ROWS["adagrad"], FEATURES), tmp_path)
    assert len(run.model.numbers) > 5


class Bags(nn.Module):
    """Embedding modules of torch, two of which share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.EmbeddingBag(20, 3, mode="mean")
        self.history = nn.Embedding(20, 3)
        self.other = nn.Embedding(20, 3)
        self.other.weight = self.history.weight
        self.top = nn.Linear(9, 1)

    def forward(self, ids: Mapping[str, Tensor]) -> Tensor:
        parts = [self.item(ids["item"][:, None]), self.history(ids["history"]), self.other(ids["item"])]
        return self.top(torch.cat(parts, 1))[:, 0]


def test_fused_models_go_on(tmp_path):
    check(lambda: Run(hr.fuse(Bags()), ROWS["adam"], FEATURES), tmp_path)


def test_models_of_plain_torch_go_on(tmp_path):
    check(lambda: Run(Bags(), None, FEATURES), tmp_path)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_unfused_collections_go_on(tmp_path):
    def make() -> Run:
        model = Click(Table("item", 3, rows=20), Table("history", 3, rows=20), fused=False)
        return Run(model, None, FEATURES, lambda p: torch.optim.Adagrad(p, lr=0.1))

    check(make, tmp_path)


def test_several_row_optimizers_go_on(tmp_path):
    def make() -> Run:
        run = Run(Click(*tables()), lambda m: Adagrad(m, lr=0.1, tables=["item"]), FEATURES)
        run.optimizers["users"] = FTRL(run.model, lr=0.1, tables=["user"])
        run.schedules["users"] = torch.optim.lr_scheduler.StepLR(run.optimizers["users"], 2, 0.5)
        return run

    check(make, tmp_path)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_model_and_a_plain_one_load_each_other(compiled, tmp_path):
    def make(compiled: bool) -> Run:
        run = Run(Click(*tables()), ROWS["adagrad"], FEATURES)
        if compiled:
            run.model.top = torch.compile(run.model.top, backend="eager")
        return run

    first, second = make(compiled), make(not compiled)
    first.train(2)
    second.resume(first.save(tmp_path))
    state = torch.get_rng_state()
    first.train(2)
    torch.set_rng_state(state)
    second.train(2)
    found = [
        {name.replace("_orig_mod.", ""): value for name, value in everything(run).items()} for run in (first, second)
    ]
    assert found[0].keys() == found[1].keys()
    assert all(_equal(value, found[1][name]) for name, value in found[0].items())
