"""A Trainer on ranks, with servers: what a job of several trainers does."""

from __future__ import annotations

from typing import Any

from hybridrec.train.together import inside
from tests.train.clicks import dataset, trainer_of
from tests.train.ranked import QUIET, stores_of


def fit(addresses: list[str], out: str, steps: int, staleness: int = 0, resume: str | None = None) -> dict[str, Any]:
    """Train on the same global batches whatever the number of ranks; the layers, and the rows of all tables."""
    ds = dataset(600, 50).shuffle(seed=1)
    given: dict[str, Any] = {"servers": addresses, "staleness": staleness} if addresses else {}
    trainer = trainer_of(ds, out=out, options=QUIET, **given)
    data = ds.shard_for_rank(by="batch")
    trainer.fit(data, steps=steps, epochs=None, resume=resume)
    model = inside(trainer.model)
    stores, final = stores_of(model), trainer.history.final
    rows = {name: store.export() for name, store in stores.items()}
    return {
        "layers": {name: part.detach().clone() for name, part in model.named_parameters()},
        "rows": {name: [data.ids, data.rows, *data.state.values()] for name, data in rows.items()},
        "step": trainer.step,
        "bytes": {name: store.memory()["allocated"] for name, store in stores.items() if store.table.dynamic},
        "told": {} if final is None else {name: each["bytes"] for name, each in final["tables"].items()},
        "records": [record.get("servers") for record in trainer.history.train],
    }
