"""Models made from a schema, and the layers that they are made of.

A model is tables of rows, looked up by `inputs(batch)`, and a dense part `net` above them. `build` makes one by name.
"""

from __future__ import annotations

from hybridrec.models import layers as layers
from hybridrec.models.build import NAMES, build
from hybridrec.models.dcnv2 import DCNv2
from hybridrec.models.deepfm import DeepFM
from hybridrec.models.din import DIN
from hybridrec.models.dlrm import DLRM
from hybridrec.models.mmoe import MMoE
from hybridrec.models.model import Model
from hybridrec.models.summary import summary
from hybridrec.models.tables import tables_of, wide_tables
from hybridrec.models.twotower import TwoTower
from hybridrec.models.widedeep import WideDeep

__all__ = [
    "NAMES",
    "build",
    "Model",
    "WideDeep",
    "DLRM",
    "DeepFM",
    "DCNv2",
    "DIN",
    "MMoE",
    "TwoTower",
    "layers",
    "summary",
    "tables_of",
    "wide_tables",
]
