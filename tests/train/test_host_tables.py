"""Training with tables on a card and dynamic ones on the host: as on the CPU alone, with nothing to do for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.models import DeepFM
from hybridrec.train import Trainer
from tests.embedding.mixed.beside import spread
from tests.gpu import DEVICE, needs_gpu
from tests.train.clicks import QUIET, dataset

pytestmark = needs_gpu

OPTIONS = {"item": {"rows": 30}, "tags": {"rows": 4}}  # user is dynamic
STEPS, BATCH = 2, 10


def model_of(ds: hr.data.Dataset, mixed: bool) -> DeepFM:
    torch.manual_seed(0)
    tables = OPTIONS | {"user": {"capacity": 100, **({"where": "host"} if mixed else {})}}
    made = DeepFM(ds.schema, dim=4, hidden=(8,), tables=tables, device=DEVICE if mixed else "cpu")
    if mixed and DEVICE.type == "cpu":
        for collection in (made.embeddings, made.wide):
            spread(collection)
    return made


def trained(mixed: bool, **more: Any) -> tuple[Trainer, hr.data.Dataset]:
    ds = dataset(rows=STEPS * BATCH, batch_size=BATCH)
    trainer = Trainer(model_of(ds, mixed), options=replace(QUIET, log_every=1), **more)
    trainer.fit(ds, epochs=1)
    return trainer, ds


def test_a_trainer_needs_to_know_nothing_of_tables_on_the_host(tmp_path):
    (here, ds), (there, _) = trained(mixed=False), trained(mixed=True, out=tmp_path / "run")
    collection: Any = there.model.embeddings
    assert isinstance(collection.group, MixedGroup)
    assert isinstance(collection["user"], HashStore)
    assert there.learner.graphs is None
    np.testing.assert_allclose(there.predict(ds), here.predict(ds), rtol=2e-3, atol=2e-4)
    losses = [[record["loss"] for record in each.history.train] for each in (here, there)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)
    loaded = hr.load(tmp_path / "run")  # on the CPU
    np.testing.assert_allclose(loaded.predict(ds), there.predict(ds), rtol=2e-3, atol=2e-4)
