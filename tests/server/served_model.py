"""A small model with a bit of everything on servers, and a run of it that can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding import Store
from hybridrec.server.client import Servers

ROWS = 12  # of a batch
SHOPS = {"shop": "sum", "visited": "none"}


class Net(nn.Module):
    """Pooled features and sequences of dynamic, fixed and hashed tables, through one layer."""

    def __init__(self, where: str | None = "server", **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        combiner = {"item": "sum", "history": "mean", "seen": "none"}
        tables = [
            hr.Table("item", dim=8, capacity=1000, features=list(combiner), combiner=combiner, where=where, **options),
            hr.Table("user", dim=4, capacity=600, eviction="lfu", combiner="max", where=where),
            hr.Table("tag", dim=4, capacity=1000, combiner="sqrtn", where=where),
            hr.Table("shop", dim=4, rows=50, features=list(SHOPS), combiner=SHOPS, out_of_range="hash", where=where),
            hr.Table("page", dim=2, rows=9, combiner="mean", out_of_range="zero", where=where),
            hr.Table("word", dim=3, hashes=hr.embedding.MultiHash(2, 20), combiner="mean", where=where),
            hr.Table("day", dim=3, rows=7),
        ]
        self.emb = hr.EmbeddingCollection(tables, seed=3)
        self.top = nn.Linear(8 + 8 + 4 + 4 + 4 + 2 + 3 + 3, 1)

    def forward(self, block: hr.IdBlock) -> Tensor:
        found = self.emb(block)
        return self.top(found.flat)[:, 0] + (found["seen"].values.sum() + found["visited"].values.sum()) * 0.01


def batch(step: int) -> tuple[hr.IdBlock, Tensor]:
    """The ids and labels of a step."""
    drawn = torch.Generator().manual_seed(step)

    def ids(most: int, longest: int) -> list[list[int]]:
        lengths = torch.randint(0, longest, (ROWS,), generator=drawn).tolist()
        return [torch.randint(-most, most, (length,), generator=drawn).tolist() for length in lengths]

    def one(most: int) -> list[list[int]]:
        return torch.randint(0, most, (ROWS, 1), generator=drawn).tolist()

    lists = {"item": one(30), "history": ids(20, 5), "seen": ids(20, 4), "user": one(40), "tag": ids(9, 4)}
    fixed = {"shop": one(80), "visited": ids(60, 4), "page": ids(12, 3), "word": ids(1000, 4), "day": one(7)}
    return hr.IdBlock.from_lists({**lists, **fixed}), torch.rand(ROWS, generator=drawn)


def train(
    servers: Servers | None,
    staleness: int = 0,
    *,
    steps: int = 8,
    ahead: bool = False,
    optimizer: str = "Adagrad",
    clip: float | None = None,
    accumulate: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """All that can be seen of a run: outputs, rows with their state and scores, clocks, what eval says."""
    model: Any = Net("server" if servers else None, **options)
    if servers is not None:
        model = hr.shard(model, servers=servers, staleness=staleness)
    rows = getattr(hr.optim, optimizer)(model, lr=0.05)
    layers = torch.optim.SGD(model.parameters(), lr=0.1)
    coming = [batch(step) for step in range(steps * accumulate)]
    distance, outputs = max(1, staleness), []
    for at, (block, label) in enumerate(coming):
        for each, _ in coming[at + distance : at + distance + 1] if at else coming[: distance + 1] if ahead else ():
            if ahead:
                model.prepare(each)
        found = model(block)
        outputs.append(found.detach())
        (((found - label) ** 2).mean() / accumulate).backward()
        if (at + 1) % accumulate == 0:
            if clip is not None:
                outputs.append(torch.tensor(float(hr.optim.clip_grad_norm_(model.parameters(), rows, clip))))
            for each in (rows, layers):
                each.step()
                each.zero_grad()
    emb = getattr(model, "module", model).emb
    stores: dict[str, Store] = {name: emb[name] for name in emb.tables}
    model.eval()
    return {
        "outputs": outputs,
        "eval": model(batch(99)[0]).detach(),
        "rows": {name: store.export() for name, store in stores.items()},
        "clocks": {name: store.clock for name, store in stores.items() if name != "day"},
        "lookup": [emb.lookup("item", [1, 2, 999]), *(emb.lookup(name, [0, 1, 7, 999]) for name in ("shop", "word"))],
    }


def assert_same(found: Any, wanted: Any, close: float = 0.0) -> None:
    """Equal in every bit, or closely."""
    if isinstance(wanted, Tensor) and close:
        torch.testing.assert_close(found, wanted, rtol=close, atol=close)
    elif isinstance(wanted, Tensor):
        assert torch.equal(found, wanted), f"{found}\n{wanted}"
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_same(found[name], wanted[name], close)
    elif isinstance(wanted, list | tuple):
        for each, other in zip(found, wanted, strict=True):
            assert_same(each, other, close)
    else:
        assert found == wanted
