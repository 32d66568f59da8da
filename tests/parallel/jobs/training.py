"""Training runs of a case: on this rank among the others, or alone on the whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding import Store
from hybridrec.embedding.owner import groups_of
from hybridrec.optim.tables import find_tables
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.ranks import Ranks, ranks
from hybridrec.parallel.shard import place
from tests.parallel.jobs.habits import HABITS
from tests.parallel.jobs.nets import net_of
from tests.parallel.training_case import Case, Rows


def train(case: dict[str, Any]) -> dict[str, Any]:
    """The run on this rank: what it saw at each step, and what its stores hold before and after."""
    made = Case(**case)
    torch.set_num_threads(made.threads)
    try:
        return run(made, sharded(made), [rank_here()])
    finally:
        torch.set_num_threads(1)


def train_alone(case: Case) -> dict[str, Any]:
    """The same run in one process, on the batches of all ranks together, on one thread as a rank has it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(replace(case, on_device=False), net_of(replace(case, on_device=False)), range(case.world))
    finally:
        torch.set_num_threads(threads)


def sharded(case: Case) -> Any:
    """The model of the case on this rank; a rank that is alone goes the same way as many."""
    return shard(net_of(case).to(device_of(case)), case)


def device_of(case: Case) -> torch.device:
    """Where the case has its layers and batches."""
    from tests.gpu import DEVICE

    return DEVICE if case.on_device else torch.device("cpu")


def shard(model: nn.Module, case: Case) -> Any:
    """Place the rows of a model as the case says."""
    wire = Wire(**case.wire or {})
    if case.servers:
        return hr.shard(model, plan=case.plan(), wire=wire, servers=case.servers, staleness=case.staleness)
    if ranks() is None:
        return place(model, case.plan(), Ranks(0, 1), wire, {})
    return hr.shard(model, plan=case.plan(), wire=wire)


def rank_here() -> int:
    """The number of this rank."""
    found = ranks()
    return found.rank if found else 0


def run(case: Case, model: Any, part: Sequence[int]) -> dict[str, Any]:
    """Train on the batches of these ranks."""
    rows = getattr(hr.optim, case.optimizer)(model, **case.options)
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[str, Any] = {"initial": stores_of(model), "steps": []}
    batches = _batches(case, model, part)
    for micros in case.sizes:
        seen = [_backward(case, model, next(batches), len(micros)) for _ in micros]
        if case.clip is not None:
            seen[-1]["norm"] = float(hr.optim.clip_grad_norm_(model.parameters(), rows, case.clip))
        found["steps"] += seen
        for optimizer in (dense, rows):
            optimizer.step()
            optimizer.zero_grad()
    inside = getattr(model, "module", model)
    found["weights"] = {name: each.detach().cpu() for name, each in inside.named_parameters()}
    found["final"] = stores_of(model)
    found["counts"] = {name: rows.steps_of(name) for name in rows.tables}
    found["eval"] = _evaluated(case, model, part)
    return found


def _batches(case: Case, model: Any, part: Sequence[int]) -> Iterator[Rows]:
    """All batches in their order; ids go ahead by one batch where the case says so."""
    coming = None
    for step, micros in enumerate(case.sizes):
        for micro in range(len(micros)):
            here, coming = coming, case.rows_of(step, micro, part).to(device_of(case))
            if case.ahead and hasattr(model, "prepare"):
                weight = float(len(coming.label)) if case.weighs else None
                for block in coming.blocks:
                    model.prepare(block, weight)
            if here is not None:
                yield here
    assert coming is not None
    yield coming


def _backward(case: Case, model: Any, given: Rows, micros: int) -> dict[str, Any]:
    """One forward and backward; the loss is the mean over the rows given."""
    if case.weighs and hasattr(model, "weigh"):
        model.weigh(float(len(given.label)))
    habit = HABITS[case.habit]
    habit.before(model, given)
    out, every = model(given.blocks, given.dense)
    loss = habit.loss(out, every, given)
    habit.between(model, given)
    (loss / micros).backward()
    seen = {"out": out.detach().cpu(), "every": every.detach().cpu(), "loss": float(loss.detach())}
    return {**seen, "weight": habit.weight(given)}


def _evaluated(case: Case, model: Any, part: Sequence[int]) -> Tensor:
    """What the model says of a batch it has not seen; no store may grow by it."""
    model.eval()
    given = replace(case, seed=case.seed + 1_000).rows_of(0, 0, part).to(device_of(case))
    sizes = [len(store) for store in stores(model).values()]
    with torch.no_grad():
        out, _ = model(given.blocks, given.dense)
    assert [len(store) for store in stores(model).values()] == sizes, "eval inserted rows"
    model.train()
    return out.cpu()


def stores(model: Any) -> dict[str, Store]:
    """The stores of all tables, then those of tables that are not trained."""
    inside = getattr(model, "module", model)
    trained = {name: ref.store for name, ref in find_tables(inside).items()}
    groups = [group for _, group in groups_of(inside)]
    return trained | {name: g.stores[name] for g in groups for name in g.stores if name not in g.handles}


def stores_of(model: Any) -> dict[str, dict[str, Any]]:
    """What the stores hold, by table."""
    return {name: held(store) for name, store in stores(model).items()}


def held(store: Store) -> dict[str, Any]:
    """All that a store holds: global ids, its columns of their rows, optimizer state, and which share it is."""
    ids, rows, state, touched, counts = store.read(store.ids())
    share = getattr(store, "share", None)
    where = share.to_json() | {"saves": share.saves, "empty": share.empty} if share is not None else {}
    beside = {"touched": touched, "counts": counts, "counters": dict(store.counters()) if store.table.dynamic else {}}
    return {"ids": ids, "rows": rows, "state": dict(state), **beside, "dim": store.dim, "share": where}
