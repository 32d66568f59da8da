"""AUC with rows that are behind, for `servers.py`: staleness 4 less staleness 0, everything else alike.

DLRM with layers of 64 and 32, batches of 1,024, two servers. KuaiRand: two epochs of April, tested on May; it is found
as the recipe finds it, in HYBRIDREC_DATA. Synthetic: one epoch of 300,000 clicks, tested on the 100,000 after them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from question import note
from servers_processes import environment, servers

import hybridrec as hr
from hybridrec.models import DLRM
from hybridrec.train import Trainer, TrainOptions

BATCH, SERVERS, STALENESS = 1_024, 2, 4
ROWS, TESTED = 400_000, 100_000


class Case(NamedTuple):
    """Data to train and to test on, and how."""

    train: Any
    test: Any
    epochs: int
    share: dict[str, str]
    row_lr: float


def gaps(cache: Path, seeds: int) -> dict[str, Any]:
    """`auc_gap`: the worse of the mean gaps of both data sets."""
    cases, absent = {"synthetic": synthetic(cache)}, {}
    try:
        cases["kuairand"] = kuairand()
    except FileNotFoundError as error:
        absent["kuairand"] = str(error)
    found = {name: [] for name in cases}
    for seed in range(seeds):
        for name, case in cases.items():
            with servers(SERVERS) as there:  # new ones: a server refuses tables of another seed than it has
                pair = {mode: auc(case, there, stale, seed) for mode, stale in (("sync", 0), ("hybrid", STALENESS))}
            found[name].append({**pair, "gap": pair["hybrid"] - pair["sync"]})
            note(f"{name}, seed {seed}: {found[name][-1]}")
    means = {name: statistics.mean(each["gap"] for each in runs) for name, runs in found.items()}
    return {"auc_gap": min(means.values()), "gaps": means, "runs": found, "absent": absent}


def auc(case: Case, addresses: Sequence[str], staleness: int, seed: int) -> float:
    """The AUC on the test rows after training."""
    torch.manual_seed(seed)
    model = DLRM(case.train.schema, dim=8, share=case.share, seed=seed)
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        lambda module: hr.optim.Adagrad(module, lr=case.row_lr),
        options=TrainOptions(progress="none", seed=seed),
        servers=list(addresses),
        staleness=staleness,
    )
    trainer.fit(case.train.shuffle(seed=seed), epochs=case.epochs)
    return trainer.evaluate(case.test)["auc"]


def kuairand() -> Case:
    """The log of short videos, as the recipe joins it."""
    from recipes import kuairand as recipe

    if not recipe.folder().exists():
        raise FileNotFoundError(f"there is no {recipe.folder()}; set HYBRIDREC_DATA")
    settings = recipe.Settings(batch_size=BATCH)
    before, after = recipe.split(settings, check=False)
    return Case(before, after, 2, recipe.HISTORIES, 0.01)


def synthetic(cache: Path) -> Case:
    """Clicks that `hybridrec synth` draws."""
    path = cache / f"synth-{ROWS}.parquet"
    if not path.exists():
        sizes = ["--rows", str(ROWS), "--ids", "8", "--dense", "4", "--histories", "0", "--vocabulary", "20000"]
        command = [sys.executable, "-m", "hybridrec", "synth", str(path), *sizes]
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    ds = hr.data.parquet(str(path), label="click", batch_size=BATCH, threads=1)
    train, test = ds.split(1 - TESTED / ROWS)
    return Case(train, test, 1, {}, 0.05)
