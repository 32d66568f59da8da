"""What becomes of newer checkpoints when a run goes on from an older one: they are moved aside, all of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hybridrec.train.checkpoint.checkpoints import Checkpoints
from hybridrec.train.checkpoint.lock import locked

FOLDER = "set-aside"


def set_aside(directory: Path, resumed: Path, beside: Path | None = None) -> Path | None:
    """Move the checkpoints that were written after `resumed` into a folder of their own; None where there are none.

    A run has one line of checkpoints: "latest" and "best" are of the line that goes on, not of one that was left. Of
    a checkpoint of another folder, none here is an ancestor. A copy of the file `beside` goes with them.

    >>> import tempfile, torch
    >>> from hybridrec.train.checkpoint import Contents
    >>> with Checkpoints(tempfile.mkdtemp()) as checkpoints:
    ...     for step in (10, 20, 30):
    ...         checkpoints.save(Contents(torch.nn.Linear(2, 1)), step)
    >>> set_aside(checkpoints.directory, checkpoints.directory / "step-000000010").name, checkpoints.latest().name
    ('set-aside-1', 'step-000000010')
    """
    found = [path.resolve() for path in Checkpoints(directory).all()]
    here = resumed.resolve()
    newer = found[found.index(here) + 1 :] if here in found else found
    if not newer:
        return None
    with locked(directory):
        target = _free_folder(directory)
        target.mkdir()
        if beside is not None and beside.exists():
            shutil.copy2(beside, target / beside.name)
        for path in newer:
            os.rename(path, target / path.name)
    return target


def _free_folder(directory: Path) -> Path:
    number = 1
    while (directory / f"{FOLDER}-{number}").exists():
        number += 1
    return directory / f"{FOLDER}-{number}"
