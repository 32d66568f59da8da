"""Checkpoints: everything a training run needs to go on, in files that other tools open.

`Checkpoints` writes them in the background and keeps the last few, `load` takes one back by name, `verify` finds
damage. The format is described in docs/checkpoints.md.
"""

from __future__ import annotations

from hybridrec.train.checkpoint.checkpoints import Checkpoints
from hybridrec.train.checkpoint.contents import Contents
from hybridrec.train.checkpoint.load import load
from hybridrec.train.checkpoint.load_report import LoadReport
from hybridrec.train.checkpoint.manifest import Manifest, read_manifest
from hybridrec.train.checkpoint.table_file import open_table
from hybridrec.train.checkpoint.verify import Problem, verify
from hybridrec.train.checkpoint.whole_tables import export_tables
from hybridrec.train.manifest_body import CheckpointError

__all__ = [
    "Checkpoints",
    "Contents",
    "load",
    "LoadReport",
    "CheckpointError",
    "Manifest",
    "read_manifest",
    "open_table",
    "export_tables",
    "verify",
    "Problem",
]
