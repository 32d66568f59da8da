"""Training runs of a case: on this rank among the others, or alone on the whole batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding import EmbeddingCollection, Store
from hybridrec.parallel.ranks import ranks
from hybridrec.types import IdBlock, Ragged
from tests.parallel.case import DENSE, Case

KEYS = 5  # parameters that learned weights are taken from


class Net(nn.Module):
    """A small dense network over everything that its collections give."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(case.seed)
        self.learned = case.learned
        self.collections = nn.ModuleList(EmbeddingCollection(tables, seed=3) for tables in case.declared())
        width = DENSE + case.lookups * sum(sum(each.dims) for each in self.collections)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.rand(KEYS) + 0.5)
        self.bottom = nn.Linear(width, 5)
        self.top = nn.Linear(5, 1)

    def forward(self, blocks: list[IdBlock], dense: Tensor) -> tuple[Tensor, Tensor]:
        """The prediction [B] and all embeddings [B, width]."""
        if self.learned:
            blocks = [
                replace(block, weights=block.weights * self.gain[block.values % KEYS])  # type: ignore[operator]
                for block in blocks
            ]
        found = [out for block in blocks for emb in self.collections for out in _vectors(emb(block))]
        every = torch.cat([dense, *found], dim=1)
        shift = 0.0 if self.learned else self.gain.sum()
        return self.top(torch.tanh(self.bottom(every)))[:, 0] + shift, every


def _vectors(out: hr.Embeddings) -> list[Tensor]:
    """What is pooled, and the sums of sequences after a function that is not linear."""
    return [out.flat.float(), *(_summed(part) for part in out.sequences.values())]


def _summed(sequence: Ragged) -> Tensor:
    lengths = sequence.offsets.diff()
    bags = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    rows = torch.tanh(sequence.flat.float())
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, bags, rows)


def train(case: dict[str, Any]) -> dict[str, Any]:
    """The run on this rank: what it saw at each step, and what its stores hold before and after."""
    made = Case(**case)
    found = ranks()
    wire = {"wire": _wire(made.wire)} if made.wire else {}
    model = hr.shard(Net(made), plan=made.plan(), **wire)
    return run(made, model, [found.rank if found else 0])


def train_alone(case: Case) -> dict[str, Any]:
    """The same run in one process, on the batches of all ranks together."""
    return run(case, Net(case), range(case.world))


def _wire(spec: dict[str, Any]) -> Any:
    return hr.parallel.Wire(**spec)


def run(case: Case, model: Any, part: Any) -> dict[str, Any]:
    """Train on the batches of these ranks."""
    rows = getattr(hr.optim, case.optimizer)(model, **case.options)
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[str, Any] = {"initial": stores_of(model), "steps": []}
    for step, micros in enumerate(case.sizes):
        for micro in range(len(micros)):
            found["steps"].append(_backward(case, model, step, micro, part))
        norm = None
        if case.clip is not None:
            norm = float(hr.optim.clip_grad_norm_(model.parameters(), rows, case.clip))
        found["steps"][-1]["norm"] = norm
        for optimizer in (dense, rows):
            optimizer.step()
            optimizer.zero_grad()
    inside = getattr(model, "module", model)
    found["weights"] = {name: each.detach() for name, each in inside.named_parameters()}
    found["final"] = stores_of(model)
    found["counts"] = {name: rows.steps_of(name) for name in rows.tables}
    found["eval"] = _evaluated(case, model, part)
    return found


def _backward(case: Case, model: Any, step: int, micro: int, part: Any) -> dict[str, Any]:
    """One forward and backward; the loss is the mean over the rows given."""
    given = case.rows_of(step, micro, part)
    out, every = model(given.blocks, given.dense)
    loss = ((out - given.label) ** 2).mean() if len(out) else (out * 0).sum()
    (loss / len(case.sizes[step])).backward()
    return {"out": out.detach(), "every": every.detach(), "loss": float(loss.detach())}


def _evaluated(case: Case, model: Any, part: Any) -> Tensor:
    """What the model says of a batch it has not seen; no store may grow by it."""
    model.eval()
    strangers = replace(case, seed=case.seed + 1_000)
    given = strangers.rows_of(0, 0, part)
    sizes = [len(store) for store in stores(model).values()]
    with torch.no_grad():
        out, _ = model(given.blocks, given.dense)
    assert [len(store) for store in stores(model).values()] == sizes, "eval inserted rows"
    model.train()
    return out


def stores(model: Any) -> dict[str, Store]:
    """The stores of all collections by table."""
    inside = getattr(model, "module", model)
    return {name: emb[name] for emb in inside.collections for name in emb.tables}


def stores_of(model: Any) -> dict[str, dict[str, Any]]:
    """What the stores hold, by table."""
    return {name: held(store) for name, store in stores(model).items()}


def held(store: Store) -> dict[str, Any]:
    """All that a store holds: global ids, its columns of their rows, optimizer state, and which share it is."""
    ids, rows, state, touched, counts = store.read(store.ids())
    share = getattr(store, "share", None)
    where = share.to_json() | {"saves": share.saves, "empty": share.empty} if share is not None else {}
    return {
        "ids": ids,
        "rows": rows,
        "state": dict(state),
        "touched": touched,
        "counts": counts,
        "dim": store.dim,
        "share": where,
    }
